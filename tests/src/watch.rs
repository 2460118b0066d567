//! [`Watch`]: the changes of Kubernetes objects, with their times.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_testkit::{Cluster, repository};

use crate::platform::TIMEOUT;

/// The pause between two checks for a line.
const POLL: Duration = Duration::from_millis(5);

/// The lines that `kubectl get --watch` prints, with their times.
pub struct Watch {
    kubectl: Child,
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Watch {
    /// Watches the objects that these arguments of `kubectl get` name. Each state of an object becomes a line by
    /// `template`, a JSONPath template.
    pub fn start(cluster: &Cluster, objects: &[&str], template: &str) -> Self {
        let mut command = Command::new(repository().join("tests/cluster/cluster.sh"));
        command.arg("exec").arg(cluster.folder()).args(["kubectl", "get", "--watch"]).args(objects);
        command.args(["-o", &format!("jsonpath={template}{{\"\\n\"}}")]);
        let mut kubectl = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let (output, read) = (kubectl.stdout.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                read.lock().unwrap().push((Instant::now(), line));
            }
        });
        Self { kubectl, lines }
    }

    /// Waits for a line for which `is_it` holds and that came after `since`. Returns the time from `since` to the line.
    ///
    /// # Panics
    /// If there is none within [`TIMEOUT`].
    pub fn after(&self, since: Instant, is_it: impl Fn(&str) -> bool) -> Duration {
        while since.elapsed() < TIMEOUT {
            let found = self.lines.lock().unwrap().iter().find(|(at, line)| *at > since && is_it(line)).cloned();
            if let Some((at, _)) = found {
                return at - since;
            }
            std::thread::sleep(POLL);
        }
        panic!("no such line: {:?}", self.lines.lock().unwrap());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
