//! Serves the page, and the state to those who have the token.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State as Extracted};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use larder_telemetry::is_same_secret;
use larder_telemetry::server::Limits;

use super::state::State;

/// The limits of the server. No request has a body.
pub(super) const LIMITS: Limits = Limits {
    connections: 64,
    head_bytes: 16 << 10,
    head: Duration::from_secs(30),
    body_bytes: 0,
    body: Duration::ZERO,
    age: Duration::from_secs(600),
    answer: Duration::from_secs(2),
};

const HTML: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// The header with the token. No other site can have a browser send it here.
const TOKEN: &str = "x-larder-token";

/// The page loads nothing from elsewhere, and no other page shows or reads it.
const PROTECTION: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
];

struct Page {
    state: Arc<State>,
    token: String,
}

/// The routes of the page.
pub(super) fn router(state: Arc<State>, token: String) -> Router {
    Router::new()
        .route("/", get(|head: HeaderMap| async move { file(&head, "text/html; charset=utf-8", HTML) }))
        .route("/page.css", get(|head: HeaderMap| async move { file(&head, "text/css; charset=utf-8", CSS) }))
        .route("/page.js", get(|head: HeaderMap| async move { file(&head, "text/javascript; charset=utf-8", JS) }))
        .route("/state", get(news))
        .with_state(Arc::new(Page { state, token }))
}

fn file(head: &HeaderMap, kind: &'static str, text: &'static str) -> Response {
    if !is_local(head) {
        return refused("Ask for 127.0.0.1: this name could be another site's.");
    }
    (PROTECTION, [(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn news(Extracted(page): Extracted<Arc<Page>>, request: Request) -> Response {
    let head = request.headers();
    let given = head.get(TOKEN).map(|given| given.as_bytes()).unwrap_or_default();
    if !is_local(head) || !is_same_secret(given, page.token.as_bytes()) {
        return refused("Open the address that `larder ui` printed: it has the token.");
    }
    let body = page.state.news(versions(request.uri().query().unwrap_or_default()));
    (PROTECTION, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn refused(why: &'static str) -> Response {
    (StatusCode::FORBIDDEN, PROTECTION, why).into_response()
}

/// Whether the browser has asked for this machine by its address. Another name may be that of a site whose owner has it
/// resolved to 127.0.0.1, to read the page from there.
fn is_local(head: &HeaderMap) -> bool {
    let host = head.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

/// The versions in a query such as `1.2`.
fn versions(query: &str) -> [u64; 2] {
    let (machine, cluster) = query.split_once('.').unwrap_or_default();
    [machine, cluster].map(|version| version.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn asked(path: &str, host: &str, token: Option<&str>) -> (StatusCode, HeaderMap, String) {
        let router = router(Arc::new(State::new(false)), "secret".to_owned());
        let mut request = Request::get(path).header(header::HOST, host);
        if let Some(token) = token {
            request = request.header(TOKEN, token);
        }
        let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    // SEMANTICS: W2
    #[tokio::test]
    async fn the_state_is_for_those_with_the_token_and_nothing_for_other_names_of_this_machine() {
        let host = "127.0.0.1:8800";
        let (status, _, body) = asked("/state?0.0", host, Some("secret")).await;
        assert!(status == StatusCode::OK && body.contains("\"versions\""), "{body}");
        for token in [None, Some(""), Some("secreT"), Some("secret2"), Some("secre")] {
            let (status, _, body) = asked("/state?0.0", host, token).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{token:?}");
            assert!(!body.contains("secret") && !body.contains("versions"), "{body}");
        }
        for path in ["/", "/page.css", "/page.js"] {
            for host in [host, "localhost", "localhost:1", "[::1]:8800"] {
                let (status, head, body) = asked(path, host, None).await;
                assert_eq!(status, StatusCode::OK, "{path} {host}");
                assert!(head[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
                assert!(!body.contains("secret"));
            }
        }
        for path in ["/", "/page.js", "/state?0.0"] {
            for host in ["evil.example:8800", "127.0.0.1.evil.example", "", "10.0.0.1"] {
                assert_eq!(asked(path, host, Some("secret")).await.0, StatusCode::FORBIDDEN, "{path} {host}");
            }
        }
        assert_eq!(asked("/other", host, Some("secret")).await.0, StatusCode::NOT_FOUND);
    }

    // SEMANTICS: W2
    #[test]
    fn the_page_asks_no_other_server_and_is_small() {
        for text in [HTML, CSS, JS] {
            // The namespace of SVG is a name, not an address.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("//cdn"));
        }
        assert!(!HTML.contains("<script>") && !HTML.contains(" style=") && !HTML.contains(" onclick="), "the policy");
        assert!(HTML.len() + CSS.len() + JS.len() <= 40_000, "{}", HTML.len() + CSS.len() + JS.len());
    }

    #[test]
    fn a_query_that_is_none_asks_for_everything() {
        for (query, has) in [("3.4", [3, 4]), ("", [0, 0]), ("x.2", [0, 2]), ("7", [0, 0])] {
            assert_eq!(versions(query), has, "{query}");
        }
    }
}
