//! Debian's Open MPI over two agents, each on a host of its own, as an unprivileged user.

use std::process::Command;

use crate::machine::Job;

/// Creates two hosts in place of pods, besides the launcher's host: a network, a host name and a folder for each.
/// mpirun's daemons of one host name would share one folder. $1 is the folder of the job.
const HOSTS: &str = r#"
set -eu
ip link set lo up
mount -t tmpfs names /run
ip link add pods type bridge
ip address add 10.77.0.3/24 dev pods
ip link set pods up
mount -t tmpfs hosts /mnt
printf '127.0.0.1 localhost\n10.77.0.1 worker-0.job\n10.77.0.2 worker-1.job\n10.77.0.3 launcher\n' >/mnt/hosts
mount --bind /mnt/hosts /etc/hosts
export LARDER_AGENT_PORT=7422 LARDER_AGENT_KEY=$1/key LARDER_AGENT_SILENCE_SECONDS=10 HOME=/nowhere
as_user() { setpriv --reuid 4711 --regid 4711 --clear-groups --no-new-privs "$@"; }
for i in 0 1; do
    ip netns add worker-$i
    ip link add port-$i master pods type veth peer name eth0 netns worker-$i
    ip link set port-$i up
    ip -n worker-$i address add 10.77.0.$((i + 1))/24 dev eth0
    ip -n worker-$i link set eth0 up
    ip -n worker-$i link set lo up
    mkdir -m 777 $1/tmp-$i
    TMPDIR=$1/tmp-$i ip netns exec worker-$i unshare --uts sh -c "hostname worker-$i
        exec setpriv --reuid 4711 --regid 4711 --clear-groups --no-new-privs $1/agent serve" &
    agents="${agents-} $!"
done
mkdir -m 777 $1/tmp
hostname launcher
printf 'worker-0.job\nworker-1.job\n' >$1/hosts
as_user $1/agent wait $1/hosts
# As the JobType has it.
export OMPI_MCA_plm_rsh_agent=$1/rsh OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_orte_leave_session_attached=1
export OMPI_MCA_plm_rsh_num_concurrent=10000 OMPI_MCA_orte_keep_fqdn_hostnames=true TMPDIR=$1/tmp
export OMPI_MCA_btl=tcp,self OMPI_MCA_rmaps_base_oversubscribe=1
status=0
as_user mpirun -H worker-0.job:2,worker-1.job:2 -np 4 sh -c \
    'echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname) as $(id -u)' || status=$?
echo "ended with $status"
status=0
as_user mpirun -H worker-0.job:1,worker-1.job:1 -np 2 sh -c 'exit 3' 2>/dev/null || status=$?
echo "failed with $status"
# A node that is lost closes nothing.
cp /bin/sleep $1/rank
install -m 666 /dev/null $1/ranks
setpriv --reuid 4711 --regid 4711 --clear-groups --no-new-privs \
    mpirun -H worker-0.job:2,worker-1.job:2 -np 4 sh -c "echo >>$1/ranks; exec $1/rank 1000" 2>/dev/null &
launcher=$!
while [ $(wc -l <$1/ranks) != 4 ]; do sleep 0.1; done
ip link set pods down
kill -KILL $launcher
tries=0
while grep -qsxE 'orted|rank' /proc/[0-9]*/comm && [ $((tries += 1)) != 600 ]; do sleep 0.1; done
grep -sxE 'orted|rank' /proc/[0-9]*/comm || echo 'nothing stays'
kill $agents
wait
"#;

#[test]
fn mpirun_starts_its_processes_by_agents_as_any_user_and_leaves_none() {
    let job = Job::new();
    // Installed for every user, into a folder that every user can reach.
    std::os::unix::fs::chown(job.folder.path(), Some(4711), Some(4711)).unwrap();
    let made = Command::new("unshare")
        .args(["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", HOSTS, "sh"])
        .arg(job.folder.path())
        .output()
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 on worker-{} as 4711", rank / 2);
        assert!(out.lines().any(|found| found == line), "{line} is missing: {out}{error}");
    }
    assert!(out.contains("ended with 0\n") && out.contains("failed with 3\n"), "{out}{error}");
    assert!(out.contains("nothing stays\n"), "{out}{error}");
}
