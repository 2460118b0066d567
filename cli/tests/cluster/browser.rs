//! Chromium without a window, over its protocol for debuggers.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket, client};

/// Long enough for everything that ends at all, on the slowest machine.
pub(crate) const NOT_HANGING: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    /// The session with the page, once there is one.
    session: Option<String>,
    commands: u64,
    /// The addresses that the page has asked.
    pub(crate) asked: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it. `None` if it is not installed, which only CI must have.
    pub(crate) fn start() -> Option<Self> {
        let profile = tempfile::tempdir().unwrap();
        let child = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--remote-debugging-port=0", &format!("--user-data-dir={}", profile.path().display())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "chromium does not run: {error}");
                eprintln!("skipped: chromium is not installed (apt-get install chromium)");
                return None;
            }
        };
        // The port and the path of its socket.
        let started = Instant::now();
        let (port, path) = loop {
            let text = std::fs::read_to_string(profile.path().join("DevToolsActivePort")).unwrap_or_default();
            if let Some((port, path)) = text.trim_end().split_once('\n') {
                break (port.to_owned(), path.to_owned());
            }
            assert!(started.elapsed() < NOT_HANGING, "chromium opens no port");
            std::thread::sleep(PAUSE);
        };
        let address = format!("127.0.0.1:{port}");
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(NOT_HANGING)).unwrap();
        let (socket, _) = client(format!("ws://{address}{path}"), stream).unwrap();
        let mut browser = Self { child, socket, session: None, commands: 0, asked: Vec::new(), _profile: profile };
        let page = browser.command("Target.createTarget", &json!({"url": "about:blank"}));
        let attached =
            browser.command("Target.attachToTarget", &json!({"targetId": page["targetId"], "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.command("Network.enable", &json!({}));
        browser.command("Emulation.setFocusEmulationEnabled", &json!({"enabled": true}));
        Some(browser)
    }

    fn command(&mut self, method: &str, parameters: &Value) -> Value {
        self.commands += 1;
        let mut command = json!({"id": self.commands, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(command.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else { continue };
            let message: Value = serde_json::from_str(text.as_str()).unwrap();
            if message["method"] == "Network.requestWillBeSent" {
                self.asked.push(message["params"]["request"]["url"].as_str().unwrap().to_owned());
            }
            if message["id"] == self.commands {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.command("Page.navigate", &json!({"url": url}));
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let result = self.command("Runtime.evaluate", &json!({"expression": expression, "returnByValue": true}));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    pub(crate) fn wait_until(&mut self, expression: &str) {
        let started = Instant::now();
        while self.value(expression) != true {
            assert!(started.elapsed() < NOT_HANGING, "not true: {expression}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Presses a key, which has this code and inserts this text.
    pub(crate) fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.command("Input.dispatchKeyEvent", &event);
        }
    }

    /// Types a text.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.command("Input.insertText", &json!({"text": text}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
