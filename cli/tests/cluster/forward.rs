//! The port of a pod, as an API server forwards it.

use std::io::{Read, Write};
use std::net::TcpStream;

use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

/// The behaviour of the port after the command's request.
#[derive(Clone)]
pub(crate) enum Port {
    /// Sends this and closes the connection.
    Says(String),
    /// Sends this and leaves the connection open.
    Hangs(String),
    /// No process listens on the port.
    Refuses(String),
    /// Instead of a port, a program that is run in the pod: prints this and ends.
    Prints(String),
}

/// Forwards the port over this connection, whose request had this head.
pub(crate) fn serve(mut stream: TcpStream, head: &[String], port: &Port) {
    let header = |name: &str| {
        let of = |line: &String| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        head.iter().find_map(of).unwrap()
    };
    assert!(header("sec-websocket-protocol").contains("v4.channel.k8s.io"));
    let accept = derive_accept_key(header("sec-websocket-key").as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-protocol: v4.channel.k8s.io\r\nsec-websocket-accept: {accept}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).unwrap();
    if let Port::Prints(text) = port {
        return print(stream, head, text);
    }
    let number: u16 = head[0].split("ports=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
    // A data channel and an error channel, which both begin with the port's number.
    let mut say = |channel: u8, bytes: &[u8]| socket.send(Message::binary([&[channel], bytes].concat()));
    for channel in [0, 1] {
        say(channel, &number.to_le_bytes()).unwrap();
    }
    match port {
        Port::Prints(_) => unreachable!("a program has no port"),
        Port::Refuses(why) => say(1, why.as_bytes()).unwrap(),
        Port::Says(text) | Port::Hangs(text) => {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                if let Message::Binary(bytes) = socket.read().unwrap() {
                    assert_eq!(bytes[0], 0);
                    asked.extend_from_slice(&bytes[1..]);
                }
            }
            assert!(asked.starts_with(b"GET /decisions?pod=team-a/notebook HTTP/1.1\r\n"));
            for part in text.as_bytes().chunks(1000) {
                let _ = socket.send(Message::binary([&[0], part].concat()));
            }
        }
    }
    if !matches!(port, Port::Hangs(_)) {
        let _ = socket.close(None);
        let _ = socket.flush();
    }
    // Waits until the command closes the connection.
    let _ = socket.get_mut().read_to_end(&mut Vec::new());
}

/// Runs the program of a pod: its output has channel 1, and its status channel 3.
fn print(stream: TcpStream, head: &[String], text: &str) {
    assert!(head[0].contains("container=larder-csi&command=larder&command=explain&command=--json"), "{head:?}");
    let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
    for part in text.as_bytes().chunks(1000) {
        let _ = socket.send(Message::binary([&[1], part].concat()));
    }
    let status = br#"{"kind": "Status", "apiVersion": "v1", "status": "Success"}"#;
    let _ = socket.send(Message::binary([&[3][..], status].concat()));
    let _ = socket.close(None);
    let _ = socket.flush();
    let _ = socket.get_mut().read_to_end(&mut Vec::new());
}
