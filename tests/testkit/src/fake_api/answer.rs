//! The server's answers to lists, gets, watches and writes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::entry::Answer;
use super::values::{id, merge, name_of, put_item, replace_leaves};
use super::{Dies, FakeApi, Id, Mode};

impl FakeApi {
    pub(super) async fn answer(&self, parts: &Parts, body: &[u8]) -> io::Result<Answer> {
        let query: BTreeMap<String, String> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        if path == ["apis"] && !self.is_dead() {
            let groups = self.lock().groups.clone();
            return Ok(ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})));
        }
        let path = if path[0] == "api" { &path[2..] } else { &path[3..] };
        let (namespace, path) = match path {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            path => ("", path),
        };
        let (plural, name, sub) = match path {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, sub] => (*plural, *name, *sub),
            _ => panic!("{:?}", parts.uri),
        };
        if self.is_dead() {
            return std::future::pending().await;
        }
        if plural == "leases" && self.lock().holds_leases {
            return std::future::pending().await;
        }
        let expected = self.lock().expected.clone();
        assert!(expected.is_empty() || expected.iter().any(|known| known == plural), "{} {}", parts.method, parts.uri);
        if parts.method == Method::GET {
            if !name.is_empty() {
                return Ok(self
                    .get(plural, namespace, name)
                    .map_or_else(|| status(404, "NotFound"), |object| ok(&object)));
            }
            let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
            let is_broken = self.lock().broken.iter().any(|broken| broken == plural);
            let mode = self.lock().modes.get(plural).copied().unwrap_or_default();
            return match mode {
                _ if is_broken => Ok(status(500, "Injected")),
                Mode::Hangs(time) => {
                    tokio::time::sleep(time).await;
                    Err(io::ErrorKind::TimedOut.into())
                }
                Mode::Refuses(code) => Ok(status(code, "Injected")),
                Mode::RefusesWatches(code) if is_watch => Ok(status(code, "Injected")),
                _ if is_watch => Ok(self.watch(plural, namespace, query["resourceVersion"].parse().unwrap())),
                _ => Ok(self.read(plural, namespace, &query)),
            };
        }
        let is_trial = query.get("dryRun").is_some_and(|dry_run| dry_run == "All");
        if plural != "leases" && !is_trial {
            let refused = {
                let mut inner = self.lock();
                let nth = inner.writes.len();
                let method = &parts.method;
                inner.writes.push(format!("{method} {plural}/{name}"));
                match inner.dies_at {
                    Some((at, Dies::BeforeTheWrite)) if at == nth => inner.dead = true,
                    _ => {}
                }
                // Only the first 40 writes: rejections and retries in the same rhythm would otherwise never end.
                inner.refuses.filter(|(every, _)| nth < 40 && nth % every == every - 1).map(|(_, code)| code)
            };
            if self.is_dead() {
                self.tell();
                return std::future::pending().await;
            }
            if let Some(code) = refused {
                return Ok(status(code, "Injected"));
            }
        }
        let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap() };
        let named = if name.is_empty() { name_of(&body).1 } else { name.to_owned() };
        let what = format!("{} {namespace}/{plural}/{named}", parts.method);
        let what = if is_trial { format!("TRY {namespace}/{plural}/{named}") } else { what };
        let denied = self.lock().denied.iter().find(|(begins, ..)| what.starts_with(begins)).cloned();
        if let Some((_, code, message)) = denied {
            return Ok(status(code, &message));
        }
        if is_trial {
            return Ok(ok(&body));
        }
        let written = self.write(&parts.method, plural, namespace, name, sub, body, &parts.headers);
        self.tell();
        let slow = self.lock().slow;
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        {
            let mut inner = self.lock();
            let count = inner.writes.len();
            if plural != "leases"
                && inner.dies_at.is_some_and(|(at, dies)| dies == Dies::AfterTheWrite && at + 1 == count)
            {
                inner.dead = true;
            }
        }
        if self.is_dead() {
            self.tell();
            return std::future::pending().await;
        }
        Ok(written)
    }

    /// A page of a list. Its token is the version of the first page, and the last object of this one.
    fn read(&self, plural: &str, namespace: &str, query: &BTreeMap<String, String>) -> Answer {
        let mut inner = self.lock();
        let limit = query.get("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0);
        let limit: usize = limit.unwrap_or(usize::MAX);
        let token = query.get("continue").map(|token| token.split('_').collect::<Vec<_>>());
        if token.is_none() {
            *inner.lists.entry(plural.to_owned()).or_default() += 1;
        }
        let version = token.as_ref().map_or_else(|| inner.version.to_string(), |token| token[0].to_owned());
        let after = token.map(|token| id(plural, token[1], token[2]));
        let mut all: Vec<(&Id, &Arc<Value>)> = inner
            .objects
            .iter()
            .filter(|((of, space, _), _)| of == plural && (namespace.is_empty() || space == namespace))
            .filter(|(id, _)| after.as_ref().is_none_or(|after| *id > after))
            .take(limit.saturating_add(1))
            .collect();
        let mut metadata = json!({"resourceVersion": version});
        if all.len() > limit {
            all.truncate(limit);
            metadata["continue"] = all.last().map(|((_, space, name), _)| format!("{version}_{space}_{name}")).into();
        }
        let items: Vec<Arc<Value>> = all.into_iter().map(|(_, object)| Arc::clone(object)).collect();
        drop(inner);
        let items: Vec<String> = items.iter().map(ToString::to_string).collect();
        let items = items.join(",");
        text(format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"metadata\":{metadata},\"items\":[{items}]}}"))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a request")]
    fn write(
        &self,
        method: &Method,
        plural: &str,
        namespace: &str,
        name: &str,
        sub: &str,
        body: Value,
        headers: &http::HeaderMap,
    ) -> Answer {
        let mut inner = self.lock();
        let name = if name.is_empty() { name_of(&body).1 } else { name.to_owned() };
        let id = id(plural, namespace, &name);
        let there = inner.objects.get(&id).cloned();
        match *method {
            Method::POST if there.is_some() => status(409, "AlreadyExists"),
            Method::POST => {
                let mut object = body;
                for (_, part, field) in inner.dropped.iter().filter(|(of, ..)| of == plural) {
                    object[part.as_str()].as_object_mut().unwrap().remove(field);
                }
                ok(&inner.store(id, object))
            }
            Method::PUT => match there {
                Some(there) if there["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"] => {
                    ok(&inner.store(id, body))
                }
                Some(_) => status(409, "Conflict"),
                None => status(404, "NotFound"),
            },
            Method::PATCH => {
                let apply = headers["content-type"] == "application/apply-patch+yaml";
                let version = &body["metadata"]["resourceVersion"];
                let mut object = match there {
                    Some(there) if !version.is_null() && there["metadata"]["resourceVersion"] != *version => {
                        return status(409, "Conflict");
                    }
                    Some(there) => Value::clone(&there),
                    None if apply && sub.is_empty() => json!({}),
                    None => return status(404, "NotFound"),
                };
                if apply {
                    let is_there = |(_, part, field): &&(String, String, String)| !body[part][field].is_null();
                    let undeclared = inner.dropped.iter().filter(|(of, ..)| of == plural).find(is_there);
                    if let Some((_, part, field)) = undeclared {
                        return status(500, &format!(".{part}.{field}: field not declared in schema"));
                    }
                    if inner.shared.iter().any(|shared| shared == plural) {
                        // Other owners have their items in these lists, so the apply must keep them.
                        body["status"].as_object().unwrap().iter().for_each(|(list, items)| {
                            items
                                .as_array()
                                .unwrap()
                                .iter()
                                .for_each(|item| put_item(&mut object["status"][list], item));
                        });
                    // The status of every other kind has one owner, who applies all of it.
                    } else if sub == "status" {
                        object["status"] = body["status"].clone();
                    } else {
                        replace_leaves(&mut object, &body);
                    }
                } else {
                    merge(&mut object, &body);
                }
                let stored = inner.store(id, object);
                drop(inner);
                ok(&stored)
            }
            Method::DELETE => {
                let uid = &body["preconditions"]["uid"];
                match there {
                    None => status(404, "NotFound"),
                    Some(there) if !uid.is_null() && there["metadata"]["uid"] != *uid => status(409, "Conflict"),
                    Some(_) => match inner.delete(&id) {
                        Some(left) => ok(&left),
                        None => ok(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"})),
                    },
                }
            }
            _ => panic!("{method}"),
        }
    }
}

fn ok(object: &Value) -> Answer {
    text(object.to_string())
}

fn text(json: String) -> Answer {
    let body = Full::new(Bytes::from(json)).map_err(|never| match never {});
    Response::new(body.boxed_unsync())
}

fn status(code: u16, reason: &str) -> Answer {
    let status = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason,
        "message": reason,
        "code": code,
    });
    let mut answer = ok(&status);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer
}
