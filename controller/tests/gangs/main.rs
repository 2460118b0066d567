//! Training jobs on a real API server, with Kubernetes' own controllers and scheduler: gangs, queues, preemption,
//! losses, a controller that is killed, and the scheduler extender. Nodes and their pods are fake (kwok), so a hundred
//! GPUs cost nothing. Each test has its own cluster, and checks every change of every pod.

mod bed;
mod extender;
mod failures;
mod fields;
mod gangs;
mod killed;
mod kueue;
mod pods;
mod preempt;
#[path = "../killed/process.rs"]
mod process;
mod quota;
mod refused;
mod rules;
mod running;
mod sweeps;
