//! The scripted API server, and runs of the command against it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tempfile::NamedTempFile;

use crate::forward::{self, Port};

/// An address without a server.
pub(crate) const NOBODY: &str = "http://127.0.0.1:1";

/// A request and its answer.
struct Line {
    request: String,
    code: u16,
    body: String,
    /// Whether the entry answers only one request.
    is_once: bool,
    /// The behaviour of a pod's port, for a request to forward it; replaces the answer.
    port: Option<Port>,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Method, path and query.
    pub(crate) line: String,
    pub(crate) body: String,
}

/// An API server that answers the requests of its script, and every other request with an error.
pub(crate) struct Server {
    url: String,
    script: Arc<Mutex<Vec<Line>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { url, script: Arc::default(), asked: Arc::default() };
        let (script, asked) = (Arc::clone(&server.script), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, asked) = (Arc::clone(&script), Arc::clone(&asked));
                std::thread::spawn(move || answer(stream, &script, &asked));
            }
        });
        server
    }

    /// Answers every request `GET /path`. The query counts only if `request` has one.
    pub(crate) fn answers(self, request: &str, code: u16, body: &str) -> Self {
        self.with(request, code, body, false)
    }

    /// Answers a request once. Several answers to the same request are used in their order.
    pub(crate) fn answers_once(self, request: &str, code: u16, body: &str) -> Self {
        self.with(request, code, body, true)
    }

    /// Forwards a port of a pod at every request.
    pub(crate) fn forwards(self, request: &str, port: Port) -> Self {
        let line =
            Line { request: request.to_owned(), code: 101, body: String::new(), is_once: false, port: Some(port) };
        self.script.lock().unwrap().push(line);
        self
    }

    fn with(self, request: &str, code: u16, body: &str, is_once: bool) -> Self {
        let line = Line { request: request.to_owned(), code, body: body.to_owned(), is_once, port: None };
        self.script.lock().unwrap().push(line);
        self
    }

    /// Runs `larder` with these arguments and this standard input.
    pub(crate) fn larder_with(&self, arguments: &[&str], input: &str) -> Output {
        let file = kubeconfig(&self.url);
        let path = file.path().to_str().unwrap();
        let at = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        let (flags, behind) = arguments.split_at(at);
        run(&[flags, &["--kubeconfig", path, "--context", "here"], behind].concat(), input)
    }

    /// Runs `larder` with these arguments.
    pub(crate) fn larder(&self, arguments: &[&str]) -> Output {
        self.larder_with(arguments, "")
    }

    /// Runs `larder` with these arguments. Its kubeconfig has a context of this name for another server.
    pub(crate) fn larder_beside(&self, name: &str, other: &Self, arguments: &[&str]) -> Output {
        let places = [("here", &self.url), (name, &other.url)];
        let clusters = places.map(|(name, url)| json!({"name": name, "cluster": {"server": url}}));
        let contexts = places
            .map(|(name, _)| json!({"name": name, "context": {"cluster": name, "user": "u", "namespace": "team-a"}}));
        let users = json!([{"name": "u", "user": {"token": "hunter2"}}]);
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "here", "clusters": clusters,
            "users": users, "contexts": contexts});
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(config.to_string().as_bytes()).unwrap();
        run(&[arguments, &["--kubeconfig", file.path().to_str().unwrap()]].concat(), "")
    }

    /// Starts `larder` with these arguments, and returns it with its first line. Its kubeconfig ends with the file.
    pub(crate) fn starts(&self, arguments: &[&str]) -> (Child, String, NamedTempFile) {
        let file = kubeconfig(&self.url);
        let cluster = ["--kubeconfig", file.path().to_str().unwrap(), "--context", "here"];
        let mut command = command(&[arguments, &cluster].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line, file)
    }

    /// The requests, in order.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Method and path of the requests, without the query.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().iter().map(|asked| asked.line.split('?').next().unwrap().to_owned()).collect()
    }
}

fn answer(mut stream: TcpStream, script: &Mutex<Vec<Line>>, asked: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let Some(line) = head.first().and_then(|first| first.strip_suffix(" HTTP/1.1")) else { return };
    let length = head.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    asked.lock().unwrap().push(Asked { line: line.to_owned(), body: String::from_utf8(body).unwrap() });
    let (code, body) = {
        let mut script = script.lock().unwrap();
        let is_port = |scripted: &&Line| line.split('?').next() == Some(&scripted.request) && scripted.port.is_some();
        if let Some(port) = script.iter().find(is_port).and_then(|line| line.port.clone()) {
            drop(script);
            return forward::serve(stream, &head, &port);
        }
        let is_it = |scripted: &Line| line == scripted.request || line.split('?').next() == Some(&scripted.request);
        match script.iter().position(is_it) {
            Some(at) if script[at].is_once => {
                let line = script.remove(at);
                (line.code, line.body)
            }
            Some(at) => (script[at].code, script[at].body.clone()),
            None => (500, status(500, "InternalError", &format!("not in the script: {line}"))),
        }
    };
    let head = format!("HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let _ = stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
}

/// A Status object of an API server's failure.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> String {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code,
    })
    .to_string()
}

/// A kubeconfig with the context `here` for a server, in the namespace team-a. The current context is a different one.
pub(crate) fn kubeconfig(url: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: elsewhere\n\
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}, {{name: no, cluster: {{server: '{NOBODY}'}}}}]\n\
         users: [{{name: u, user: {{token: hunter2}}}}]\n\
         contexts:\n\
         - {{name: here, context: {{cluster: c, user: u, namespace: team-a}}}}\n\
         - {{name: elsewhere, context: {{cluster: no, user: u}}}}\n"
    );
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// `larder` with an environment that hides this machine's own clusters.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    command.args(arguments);
    command
}

/// Runs `larder` to its end.
pub(crate) fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The error is ignored: a command that does not read its input may have exited.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The command's whole output.
pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", out(output), String::from_utf8_lossy(&output.stderr))
}
