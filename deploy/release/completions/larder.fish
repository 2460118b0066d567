# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_larder_global_optspecs
    string join \n v/verbose h/help V/version
end

function __fish_larder_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_larder_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_larder_using_subcommand
    set -l cmd (__fish_larder_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c larder -n "__fish_larder_needs_command" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_needs_command" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_needs_command" -s V -l version -d 'Print version'
complete -c larder -n "__fish_larder_needs_command" -f -a "quickstart" -d 'Demonstrate Larder: mount a dataset from an embedded S3 and read it for several epochs under each policy'
complete -c larder -n "__fish_larder_needs_command" -f -a "import" -d 'List an origin once and write the dataset\'s manifest'
complete -c larder -n "__fish_larder_needs_command" -f -a "pack" -d 'Copy a dataset of small files into packs of about 64 MiB, with a checksum per block'
complete -c larder -n "__fish_larder_needs_command" -f -a "sync" -d 'Copy a dataset to another bucket, cloud or directory, as a mirror: only what is missing there'
complete -c larder -n "__fish_larder_needs_command" -f -a "mount" -d 'Mount a dataset'
complete -c larder -n "__fish_larder_needs_command" -f -a "umount" -d 'Unmount a dataset'
complete -c larder -n "__fish_larder_needs_command" -f -a "warm" -d 'Fill the cache of a mount before it is read'
complete -c larder -n "__fish_larder_needs_command" -f -a "plan" -d 'Say which files a program is going to read, so that they are fetched ahead of it'
complete -c larder -n "__fish_larder_needs_command" -f -a "verify" -d 'Compare a mount, or a dataset at its origin, with its manifest'
complete -c larder -n "__fish_larder_needs_command" -f -a "stats" -d 'Show the state and the hit ratio of mounts'
complete -c larder -n "__fish_larder_needs_command" -f -a "status" -d 'Show the state and the hit ratio of mounts'
complete -c larder -n "__fish_larder_needs_command" -f -a "top" -d 'Watch all mounts on this machine, or the caches of a cluster, on a screen'
complete -c larder -n "__fish_larder_needs_command" -f -a "ui" -d 'Show this machine and a cluster on a page in the browser'
complete -c larder -n "__fish_larder_needs_command" -f -a "cache" -d 'List the datasets in the cache, drop one, or keep its room'
complete -c larder -n "__fish_larder_needs_command" -f -a "doctor" -d 'Check this machine and suggest fixes'
complete -c larder -n "__fish_larder_needs_command" -f -a "devices" -d 'Show the GPUs and HCAs of this node: which pods hold them, and why a device is out of service'
complete -c larder -n "__fish_larder_needs_command" -f -a "job" -d 'Submit, list, follow and cancel the training jobs of a Kubernetes cluster'
complete -c larder -n "__fish_larder_needs_command" -f -a "queue" -d 'Show the queues of a Kubernetes cluster: quota, usage and waiting jobs'
complete -c larder -n "__fish_larder_needs_command" -f -a "cluster" -d 'Show the clusters that jobs may run in, and let a home run jobs in one'
complete -c larder -n "__fish_larder_needs_command" -f -a "explain" -d 'Explain why a job waits for a mount, why a Dataset or job is not ready, or why a pod was placed on its node'
complete -c larder -n "__fish_larder_needs_command" -f -a "example" -d 'Print manifests to start from, filled with your bucket'
complete -c larder -n "__fish_larder_needs_command" -f -a "bench" -d 'Time epochs over a directory, or simulate them. All other benchmarks are in larder-bench'
complete -c larder -n "__fish_larder_needs_command" -f -a "version" -d 'Show the version of this command, of the programs behind this machine\'s mounts, and of a cluster\'s programs'
complete -c larder -n "__fish_larder_needs_command" -f -a "help-page" -d 'Print the text of docs/COMMANDS.md'
complete -c larder -n "__fish_larder_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l files -d 'Number of files in the dataset' -r
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l mean-size -d 'Mean file size. Sizes are between 16 KB and 5 MB' -r
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l epochs -d 'Number of epochs per policy and cache size' -r
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l readers -d 'Number of reader threads' -r
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l seed -d 'Seed of the files and the shuffles' -r
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l keep -d 'Use this directory for data, cache and mounts instead of a temporary one, and keep it' -r -F
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l plot -d 'Write the plot to this file' -r -F
complete -c larder -n "__fish_larder_using_subcommand quickstart" -l json -d 'Also write all figures to this file' -r -F
complete -c larder -n "__fish_larder_using_subcommand quickstart" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand quickstart" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand import" -l name -d 'Name of the dataset. Default: the last part of SRC' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l to -d 'Write the manifest to this file or URL; may be repeated for URLs. `{snapshot}` is replaced by the snapshot\'s id. Default: where `larder mount SRC` finds it on this machine' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l unless-published -d 'If a manifest exists at this URL, use it instead of listing' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l report -d 'Write a short JSON report to this file, even if the import fails, for a pod\'s /dev/termination-log. With this flag, a --to that the credentials may not write to is reported but is not a failure' -r -F
complete -c larder -n "__fish_larder_using_subcommand import" -l order -d 'The files that jobs read first: a regular file with paths, directories and patterns, as for `larder warm --from`. The list is stored beside the manifest, and `larder warm` begins with it. Later imports keep it until it is replaced' -r -F
complete -c larder -n "__fish_larder_using_subcommand import" -l endpoint -d 'The server, if it is not the cloud\'s own (Ceph, MinIO, an emulator): http://host:port' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l region -d 'The S3 region' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l origin-credentials-dir -d 'Directory of credentials, such as a mounted Secret: one file for each AWS_*, GOOGLE_* or AZURE_* variable and for LARDER_PEER_TOKEN, with the variable\'s name. Files precede variables' -r -F
complete -c larder -n "__fish_larder_using_subcommand import" -l attempt-timeout -d 'Retry after this long without progress' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l read-deadline -d 'Fail a read with ETIMEDOUT after this long at the origin, over all attempts' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l origin-concurrency -d 'Maximum concurrent requests to the origin. Larder sends fewer while more would bring nothing, and while the origin rejects requests or slows down' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l origin-rate -d 'Maximum bytes per second to read from an origin, such as 1GiB/s. Readers come before warm-ups. Default: no limit. A mount that joins a serving process gets that process\'s limit' -r
complete -c larder -n "__fish_larder_using_subcommand import" -l require-credentials -d 'Fail if --origin-credentials-dir is empty, for a pod whose Secret does not exist yet'
complete -c larder -n "__fish_larder_using_subcommand import" -l links -d 'Show objects whose names end in .rclonelink, which rclone makes of symbolic links, as links. Each costs a request. The links of a directory need no flag. Later refreshes show links too if this listing has any'
complete -c larder -n "__fish_larder_using_subcommand import" -l restart -d 'Start over, discarding the listing of an unfinished import'
complete -c larder -n "__fish_larder_using_subcommand import" -l json -d 'Print the result as JSON'
complete -c larder -n "__fish_larder_using_subcommand import" -l anonymous -d 'Send no credentials (for public buckets)'
complete -c larder -n "__fish_larder_using_subcommand import" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand import" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand pack" -l pack-size -d 'Approximate size of a pack' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l endpoint -d 'The server, if it is not the cloud\'s own (Ceph, MinIO, an emulator): http://host:port' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l region -d 'The S3 region' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l origin-credentials-dir -d 'Directory of credentials, such as a mounted Secret: one file for each AWS_*, GOOGLE_* or AZURE_* variable and for LARDER_PEER_TOKEN, with the variable\'s name. Files precede variables' -r -F
complete -c larder -n "__fish_larder_using_subcommand pack" -l attempt-timeout -d 'Retry after this long without progress' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l read-deadline -d 'Fail a read with ETIMEDOUT after this long at the origin, over all attempts' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l origin-concurrency -d 'Maximum concurrent requests to the origin. Larder sends fewer while more would bring nothing, and while the origin rejects requests or slows down' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l origin-rate -d 'Maximum bytes per second to read from an origin, such as 1GiB/s. Readers come before warm-ups. Default: no limit. A mount that joins a serving process gets that process\'s limit' -r
complete -c larder -n "__fish_larder_using_subcommand pack" -l restart -d 'Start over, discarding the packs of an unfinished run'
complete -c larder -n "__fish_larder_using_subcommand pack" -l json -d 'Print the result as JSON'
complete -c larder -n "__fish_larder_using_subcommand pack" -l anonymous -d 'Send no credentials (for public buckets)'
complete -c larder -n "__fish_larder_using_subcommand pack" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand pack" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand sync" -l max-rate -d 'Maximum bytes per second to copy, such as 200MiB/s. Default: no limit' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l refresh -d 'List SRC again first: always, or if the last listing is older than this (--refresh=24h), as for `larder mount`' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l to-endpoint -d 'The server of DST. Default: --endpoint, if both are of one kind of store or SRC is a directory' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l to-region -d 'The S3 region of DST. Default: --region, if both are of one kind of store or SRC is a directory' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l to-credentials-dir -d 'Directory of the credentials for DST, as for --origin-credentials-dir. Default: those of SRC' -r -F
complete -c larder -n "__fish_larder_using_subcommand sync" -l to-credentials-prefix -d 'Use the files of --to-credentials-dir whose names begin with this, such as eu. for eu.AWS_ACCESS_KEY_ID. If there are none, the credentials are those of SRC' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l report -d 'Write a short JSON report to this file, even if the copy fails, for a pod\'s /dev/termination-log' -r -F
complete -c larder -n "__fish_larder_using_subcommand sync" -l endpoint -d 'The server, if it is not the cloud\'s own (Ceph, MinIO, an emulator): http://host:port' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l region -d 'The S3 region' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l origin-credentials-dir -d 'Directory of credentials, such as a mounted Secret: one file for each AWS_*, GOOGLE_* or AZURE_* variable and for LARDER_PEER_TOKEN, with the variable\'s name. Files precede variables' -r -F
complete -c larder -n "__fish_larder_using_subcommand sync" -l attempt-timeout -d 'Retry after this long without progress' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l read-deadline -d 'Fail a read with ETIMEDOUT after this long at the origin, over all attempts' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l origin-concurrency -d 'Maximum concurrent requests to the origin. Larder sends fewer while more would bring nothing, and while the origin rejects requests or slows down' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l origin-rate -d 'Maximum bytes per second to read from an origin, such as 1GiB/s. Readers come before warm-ups. Default: no limit. A mount that joins a serving process gets that process\'s limit' -r
complete -c larder -n "__fish_larder_using_subcommand sync" -l dry-run -d 'Show what would be copied and removed, and change nothing'
complete -c larder -n "__fish_larder_using_subcommand sync" -l delete -d 'Remove the objects of DST that the snapshot does not have, once its manifest is stored. Without this flag nothing is removed'
complete -c larder -n "__fish_larder_using_subcommand sync" -l pack -d 'Copy the files into packs of about 64 MiB, as `larder pack` does'
complete -c larder -n "__fish_larder_using_subcommand sync" -l json -d 'Print the result as JSON'
complete -c larder -n "__fish_larder_using_subcommand sync" -l anonymous -d 'Send no credentials (for public buckets)'
complete -c larder -n "__fish_larder_using_subcommand sync" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand sync" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand mount" -l cache-dir -d 'The cache directory. Default: ~/.cache/larder/store. One process serves all mounts that share a cache' -r -F
complete -c larder -n "__fish_larder_using_subcommand mount" -l refresh -d 'List the origin again before mounting: always, or if the last listing is older than this (--refresh=24h; units: ms, s, m, h, d). Without this flag the existing listing is used, whatever its age. A manifest published beside the data is only renewed by `larder import --to`: for it, --refresh is an error, and with best-effort a warning' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l cache-size -d 'Bytes of the dataset to cache. Default: the whole dataset (with a placement other than local, the part that this node owns), provided that a fifth of the disk\'s free space remains. Each file takes up to 5 KiB more on disk. Units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB. With 0 nothing is cached, and every read goes to the origin' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l policy -d 'Policy of a cache that is smaller than the dataset. The default, nr, keeps the files that are read first and replaces nothing, so the hit ratio of every epoch is cache size/dataset size. smallest keeps the smallest files instead: the same bytes in fewer requests, for programs that read the whole dataset in each epoch' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l placement -d 'How nodes divide the dataset: each node caches for itself (local), each block has one owner (partitioned), or each block has N owners (replicated:N). partitioned and replicated require a larderd with --peers on this cache, and LARDER_PEER_TOKEN if the other nodes set it' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l uid -d 'User that owns all files. Default: the user that mounts' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l gid -d 'Group of all files. Default: the group of the user that mounts' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l file-mode -d 'Permission bits of files, in octal and without write bits. Default: 0444' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l dir-mode -d 'Permission bits of directories, in octal and without write bits. Default: 0555' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l threads -d 'Most threads that serve the kernel\'s requests at the same time. Default: half of the cores, at least 16 and at most 64' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l read-ahead -d 'Bytes that the kernel reads ahead within a file (root only)' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l verify -d 'When cached files of more than 8 MiB are compared with their checksums. The kernel can read those that are wholly cached by itself, at the speed of the disk, but compares nothing (root only, from Linux 6.9 on)' -r -f -a "once\t'Once after each start of the serving process, before the kernel reads the file'
always\t'At each read'"
complete -c larder -n "__fish_larder_using_subcommand mount" -l warm-rate -d 'Maximum bytes per second that all warm-ups of the serving process fetch together, such as 200MiB/s. Default: no limit. A mount that joins a serving process gets that process\'s limit' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l memory-target -d 'Memory of the serving process for the data in flight of all of its datasets. Default: half of the memory that the container or the machine leaves beside 1.5 GiB for the process and its imports; at least 128MiB and at most 4GiB. A mount that joins a serving process gets that process\'s memory' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l mirror -d 'Read from this mirror too, which `larder sync` made: when SRC fails, or before it with `first`. Settings follow the URL, each after a comma: name=NAME, endpoint=URL, region=REGION, credentials-dir=DIR, cost=N and first. May be repeated' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l endpoint -d 'The server, if it is not the cloud\'s own (Ceph, MinIO, an emulator): http://host:port' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l region -d 'The S3 region' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l origin-credentials-dir -d 'Directory of credentials, such as a mounted Secret: one file for each AWS_*, GOOGLE_* or AZURE_* variable and for LARDER_PEER_TOKEN, with the variable\'s name. Files precede variables' -r -F
complete -c larder -n "__fish_larder_using_subcommand mount" -l attempt-timeout -d 'Retry after this long without progress' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l read-deadline -d 'Fail a read with ETIMEDOUT after this long at the origin, over all attempts' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l origin-concurrency -d 'Maximum concurrent requests to the origin. Larder sends fewer while more would bring nothing, and while the origin rejects requests or slows down' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l origin-rate -d 'Maximum bytes per second to read from an origin, such as 1GiB/s. Readers come before warm-ups. Default: no limit. A mount that joins a serving process gets that process\'s limit' -r
complete -c larder -n "__fish_larder_using_subcommand mount" -l over -d 'Mount over a directory that has files. They are hidden until the unmount'
complete -c larder -n "__fish_larder_using_subcommand mount" -l allow-other -d 'Give other users access. Root\'s mounts always do; other users need user_allow_other in /etc/fuse.conf'
complete -c larder -n "__fish_larder_using_subcommand mount" -s f -l foreground -d 'Stay in the foreground and log to standard error. Standard output gets two lines once the dataset is mounted'
complete -c larder -n "__fish_larder_using_subcommand mount" -l json -d 'Print the result as JSON'
complete -c larder -n "__fish_larder_using_subcommand mount" -l announce -d 'Report the outcome to the command that started this background process'
complete -c larder -n "__fish_larder_using_subcommand mount" -l anonymous -d 'Send no credentials (for public buckets)'
complete -c larder -n "__fish_larder_using_subcommand mount" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand mount" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c larder -n "__fish_larder_using_subcommand umount" -l lazy -d 'Detach the mount even if files are in use; it ends when the last file is closed'
complete -c larder -n "__fish_larder_using_subcommand umount" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand umount" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand warm" -l from -d 'Cache the files on this list, in this order; if they do not all fit, the first ones are kept. Each line is a path below DIR, a directory, or a pattern (* ? [a-z], and ** for any number of directories). Lines that begin with # are comments. - reads standard input' -r -F
complete -c larder -n "__fish_larder_using_subcommand warm" -l wait -d 'Wait until the cache is filled. The exit code is 1 if blocks cannot be fetched, or cannot be stored because the disk fails or is full. A dataset that is larger than its reservation is not a failure: the output says how many of its blocks are cached'
complete -c larder -n "__fish_larder_using_subcommand warm" -l json -d 'Print the result as JSON'
complete -c larder -n "__fish_larder_using_subcommand warm" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand warm" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand plan" -l from -d 'The files, in the order in which they will be read. Each line is a path below DIR. Lines that begin with # are comments. - reads standard input, from which each line counts as soon as it comes' -r -F
complete -c larder -n "__fish_larder_using_subcommand plan" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand plan" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand verify" -l endpoint -d 'The server, if it is not the cloud\'s own (Ceph, MinIO, an emulator): http://host:port' -r
complete -c larder -n "__fish_larder_using_subcommand verify" -l region -d 'The S3 region' -r
complete -c larder -n "__fish_larder_using_subcommand verify" -l origin-credentials-dir -d 'Directory of credentials, such as a mounted Secret: one file for each AWS_*, GOOGLE_* or AZURE_* variable and for LARDER_PEER_TOKEN, with the variable\'s name. Files precede variables' -r -F
complete -c larder -n "__fish_larder_using_subcommand verify" -l attempt-timeout -d 'Retry after this long without progress' -r
complete -c larder -n "__fish_larder_using_subcommand verify" -l read-deadline -d 'Fail a read with ETIMEDOUT after this long at the origin, over all attempts' -r
complete -c larder -n "__fish_larder_using_subcommand verify" -l origin-concurrency -d 'Maximum concurrent requests to the origin. Larder sends fewer while more would bring nothing, and while the origin rejects requests or slows down' -r
complete -c larder -n "__fish_larder_using_subcommand verify" -l origin-rate -d 'Maximum bytes per second to read from an origin, such as 1GiB/s. Readers come before warm-ups. Default: no limit. A mount that joins a serving process gets that process\'s limit' -r
complete -c larder -n "__fish_larder_using_subcommand verify" -l deep -d 'Read every byte at the origin'
complete -c larder -n "__fish_larder_using_subcommand verify" -l json -d 'Print the result as JSON'
complete -c larder -n "__fish_larder_using_subcommand verify" -l anonymous -d 'Send no credentials (for public buckets)'
complete -c larder -n "__fish_larder_using_subcommand verify" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand verify" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand stats" -s w -l watch -d 'Refresh every second, with the hit ratio since the last refresh'
complete -c larder -n "__fish_larder_using_subcommand stats" -l json -d 'Print one JSON document for each mount'
complete -c larder -n "__fish_larder_using_subcommand stats" -l cluster -d 'Show how much of each mounted dataset every node of the cluster has cached, and how many bytes each node has read from other nodes and served to them since it started'
complete -c larder -n "__fish_larder_using_subcommand stats" -l history -d 'Show the passes over datasets that have ended, also of mounts that are gone: hits beside the promise, and for how long readers waited for what. They are kept in ~/.cache/larder, and those of larderd.service in /var/lib/larder/home'
complete -c larder -n "__fish_larder_using_subcommand stats" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand stats" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand status" -s w -l watch -d 'Refresh every second, with the hit ratio since the last refresh'
complete -c larder -n "__fish_larder_using_subcommand status" -l json -d 'Print one JSON document for each mount'
complete -c larder -n "__fish_larder_using_subcommand status" -l cluster -d 'Show how much of each mounted dataset every node of the cluster has cached, and how many bytes each node has read from other nodes and served to them since it started'
complete -c larder -n "__fish_larder_using_subcommand status" -l history -d 'Show the passes over datasets that have ended, also of mounts that are gone: hits beside the promise, and for how long readers waited for what. They are kept in ~/.cache/larder, and those of larderd.service in /var/lib/larder/home'
complete -c larder -n "__fish_larder_using_subcommand status" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand status" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand top" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand top" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand top" -l once -d 'Print one table instead of a screen. Output that is not a terminal gets a table each second'
complete -c larder -n "__fish_larder_using_subcommand top" -l cluster -d 'Show the caches of a cluster\'s nodes instead of this machine\'s mounts. Required permission: `list` on nodecaches.larder.dev'
complete -c larder -n "__fish_larder_using_subcommand top" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand top" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand ui" -l port -d 'Port on 127.0.0.1. Default: a free one' -r
complete -c larder -n "__fish_larder_using_subcommand ui" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand ui" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand ui" -l cluster -d 'Show a cluster, too: its Datasets, queues, jobs and nodes'
complete -c larder -n "__fish_larder_using_subcommand ui" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand ui" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -f -a "ls" -d 'List the datasets in the cache, mounted or not'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -f -a "rm" -d 'Drop what is cached of a dataset that is not mounted'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -f -a "pin" -d 'Keep a dataset\'s room in the cache also while it is not mounted, so that no other dataset gets it'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -f -a "unpin" -d 'End a pin. The blocks stay until other datasets need their room'
complete -c larder -n "__fish_larder_using_subcommand cache; and not __fish_seen_subcommand_from ls rm pin unpin help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from ls" -l cache-dir -d 'The cache directory. Default: that of the larderd.service of this machine for root, otherwise ~/.cache/larder/store' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from ls" -l run-dir -d 'The directory of larderd\'s socket, if it is not the cache directory' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from ls" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from ls" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from rm" -l cache-dir -d 'The cache directory. Default: that of the larderd.service of this machine for root, otherwise ~/.cache/larder/store' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from rm" -l run-dir -d 'The directory of larderd\'s socket, if it is not the cache directory' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from rm" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from pin" -l cache-dir -d 'The cache directory. Default: that of the larderd.service of this machine for root, otherwise ~/.cache/larder/store' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from pin" -l run-dir -d 'The directory of larderd\'s socket, if it is not the cache directory' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from pin" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from pin" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from unpin" -l cache-dir -d 'The cache directory. Default: that of the larderd.service of this machine for root, otherwise ~/.cache/larder/store' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from unpin" -l run-dir -d 'The directory of larderd\'s socket, if it is not the cache directory' -r -F
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from unpin" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from unpin" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "ls" -d 'List the datasets in the cache, mounted or not'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "rm" -d 'Drop what is cached of a dataset that is not mounted'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "pin" -d 'Keep a dataset\'s room in the cache also while it is not mounted, so that no other dataset gets it'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "unpin" -d 'End a pin. The blocks stay until other datasets need their room'
complete -c larder -n "__fish_larder_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand doctor" -l kubelet-dir -d 'The kubelet\'s directory' -r -F
complete -c larder -n "__fish_larder_using_subcommand doctor" -l cache-dir -d 'The cache directory to check. Default with --node: /var/lib/larder/cache' -r -F
complete -c larder -n "__fish_larder_using_subcommand doctor" -l keep-free -d 'Share of the disk that the cache leaves free, as configured for larderd. Default with --node: 20%, otherwise 0%' -r
complete -c larder -n "__fish_larder_using_subcommand doctor" -l node -d 'Check this machine as a Kubernetes node that runs larder-csi, larderd and larder-devices'
complete -c larder -n "__fish_larder_using_subcommand doctor" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand doctor" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand devices" -l address -d 'The --admin-address of larder-devices, which answers only within its own pod' -r
complete -c larder -n "__fish_larder_using_subcommand devices" -l json -d 'Print the report as JSON, as it is served'
complete -c larder -n "__fish_larder_using_subcommand devices" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand devices" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "submit" -d 'Submit training jobs, from manifests or from flags'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "apply" -d 'Submit training jobs, from manifests or from flags'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "diff" -d 'Show what submitting manifests would change'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "list" -d 'List training jobs with their phase and its reason'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "get" -d 'List training jobs with their phase and its reason'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "top" -d 'Show the CPUs and the memory that jobs use'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "events" -d 'List the events of a job and of its pods'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "logs" -d 'Print the logs of a job\'s pods'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "cancel" -d 'Cancel jobs: delete them and their pods, or suspend them'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "delete" -d 'Cancel jobs: delete them and their pods, or suspend them'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "resume" -d 'Resume suspended jobs'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "convert" -d 'Convert Kubeflow\'s TFJobs, PyTorchJobs and MPIJobs to TrainingJobs'
complete -c larder -n "__fish_larder_using_subcommand job; and not __fish_seen_subcommand_from submit apply diff list get top events logs cancel delete resume convert help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l name -d 'The name of the job' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l type -d 'The JobType. Types that need more than one role, such as mpi, require a manifest' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l image -d 'The container image' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l role -d 'The role of the pods, as defined by the JobType' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l replicas -d 'Number of pods' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l gpus -d 'GPUs per pod: N of nvidia.com/gpu, or RESOURCE=N' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l cpus -d 'CPUs per pod. Default: the JobType\'s' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l memory -d 'Memory per pod, such as 64Gi. Default: the JobType\'s' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l dataset -d 'A Dataset and the directory to mount it at in the pods. May be repeated' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l queue -d 'The Queue to submit the job to' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -s w -l wait -d 'Wait until the jobs have ended, and report their progress'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l dry-run -d 'Validate the jobs in the cluster and print their manifests, without submitting them'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from submit" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l name -d 'The name of the job' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l type -d 'The JobType. Types that need more than one role, such as mpi, require a manifest' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l image -d 'The container image' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l role -d 'The role of the pods, as defined by the JobType' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l replicas -d 'Number of pods' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l gpus -d 'GPUs per pod: N of nvidia.com/gpu, or RESOURCE=N' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l cpus -d 'CPUs per pod. Default: the JobType\'s' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l memory -d 'Memory per pod, such as 64Gi. Default: the JobType\'s' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l dataset -d 'A Dataset and the directory to mount it at in the pods. May be repeated' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l queue -d 'The Queue to submit the job to' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -s w -l wait -d 'Wait until the jobs have ended, and report their progress'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l dry-run -d 'Validate the jobs in the cluster and print their manifests, without submitting them'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from apply" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from diff" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from diff" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from diff" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from diff" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from diff" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -l queue -d 'List only the jobs of this queue' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -s A -l all-namespaces -d 'List the jobs of all namespaces'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -l queue -d 'List only the jobs of this queue' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -s A -l all-namespaces -d 'List the jobs of all namespaces'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -s A -l all-namespaces -d 'Show the jobs of all namespaces'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from top" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from events" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from events" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from events" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from events" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from events" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from events" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l role -d 'The role of the pod. Default: launcher, or else the job\'s first role' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l index -d 'The index of the pod in its role' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l tail -d 'Number of lines to show from the end of each log, or `all`' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l container -d 'The container. Default: the pod\'s first container' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l all -d 'Show all pods, prefixing each line with ROLE-INDEX'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -s f -l follow -d 'Follow until the job ends, across replacement pods'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l previous -d 'Show the previous pod of this index, if spec.keepPods retained it'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -l json -d 'Print a JSON object for each line'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from logs" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -l suspend -d 'Set spec.suspend: stop the pods and keep the job'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -s w -l wait -d 'Wait until the jobs are deleted, or suspended with --suspend'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -l json -d 'Print the jobs as they were before, as JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from cancel" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -l suspend -d 'Set spec.suspend: stop the pods and keep the job'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -s w -l wait -d 'Wait until the jobs are deleted, or suspended with --suspend'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -l json -d 'Print the jobs as they were before, as JSON'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from resume" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from resume" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from resume" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from resume" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from resume" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from convert" -l json -d 'Print JSON, including the warnings'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from convert" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from convert" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "submit" -d 'Submit training jobs, from manifests or from flags'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "diff" -d 'Show what submitting manifests would change'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "list" -d 'List training jobs with their phase and its reason'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "top" -d 'Show the CPUs and the memory that jobs use'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "events" -d 'List the events of a job and of its pods'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "logs" -d 'Print the logs of a job\'s pods'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "cancel" -d 'Cancel jobs: delete them and their pods, or suspend them'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "resume" -d 'Resume suspended jobs'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "convert" -d 'Convert Kubeflow\'s TFJobs, PyTorchJobs and MPIJobs to TrainingJobs'
complete -c larder -n "__fish_larder_using_subcommand job; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand queue" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand queue" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand queue" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand queue" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand queue" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand queue" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cluster; and not __fish_seen_subcommand_from list describe join help" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cluster; and not __fish_seen_subcommand_from list describe join help" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cluster; and not __fish_seen_subcommand_from list describe join help" -f -a "list" -d 'List the clusters that jobs may run in, with their free room'
complete -c larder -n "__fish_larder_using_subcommand cluster; and not __fish_seen_subcommand_from list describe join help" -f -a "describe" -d 'Show one cluster: its room, its queues and the datasets that it holds'
complete -c larder -n "__fish_larder_using_subcommand cluster; and not __fish_seen_subcommand_from list describe join help" -f -a "join" -d 'Let a home run jobs in a cluster, and print the objects that the home needs for it'
complete -c larder -n "__fish_larder_using_subcommand cluster; and not __fish_seen_subcommand_from list describe join help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from list" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from list" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from describe" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from describe" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from describe" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from describe" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from describe" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -l home -d 'The name of the home, for its account in the cluster: at most 26 characters, and another for each home' -r
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -l allow -d 'A namespace in which the home may run jobs; repeat it for more' -r
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -l server -d 'The URL of the cluster\'s API server, as the home reaches it. Default: the one in the kubeconfig' -r
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from join" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the clusters that jobs may run in, with their free room'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "describe" -d 'Show one cluster: its room, its queues and the datasets that it holds'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "join" -d 'Let a home run jobs in a cluster, and print the objects that the home needs for it'
complete -c larder -n "__fish_larder_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -l batch-files -d 'Files in a batch of the job. With --batch-compute, the facts include the utilisation of the accelerators' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -l batch-compute -d 'Time in which the job computes a batch, such as 250ms' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -a "dataset" -d 'Explain in one sentence why a Dataset is ready or not, what happens next and what to do'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -a "job" -d 'Explain in one sentence what a TrainingJob is waiting for, how it runs or how it ended, and what to do'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -a "pod" -d 'Explain in one sentence why a pod was placed on its node or is waiting, and list the score of each node'
complete -c larder -n "__fish_larder_using_subcommand explain; and not __fish_seen_subcommand_from dataset job pod help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from dataset" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from dataset" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from dataset" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from dataset" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from dataset" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from job" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from job" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from job" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from job" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from job" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from job" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -l extender -d 'The extender to ask, for example one used by the cluster\'s default scheduler. Default: the extenders in larder-system' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -s n -l namespace -d 'The namespace for names without one. Default: the context\'s namespace' -r
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -l all -d 'Show all nodes instead of the best 20'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from pod" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "dataset" -d 'Explain in one sentence why a Dataset is ready or not, what happens next and what to do'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "job" -d 'Explain in one sentence what a TrainingJob is waiting for, how it runs or how it ended, and what to do'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "pod" -d 'Explain in one sentence why a pod was placed on its node or is waiting, and list the score of each node'
complete -c larder -n "__fish_larder_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand example" -l source -d 'The URL of the data' -r
complete -c larder -n "__fish_larder_using_subcommand example" -l endpoint -d 'The S3 server, if it is not AWS: http://host:port. Datasets may name servers that the administrator listed' -r
complete -c larder -n "__fish_larder_using_subcommand example" -s n -l namespace -d 'The namespace of the objects' -r
complete -c larder -n "__fish_larder_using_subcommand example" -l image -d 'The image of the example\'s pods. Default: one of a public registry' -r
complete -c larder -n "__fish_larder_using_subcommand example" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand example" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c larder -n "__fish_larder_using_subcommand bench; and not __fish_seen_subcommand_from epochs sim help" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand bench; and not __fish_seen_subcommand_from epochs sim help" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand bench; and not __fish_seen_subcommand_from epochs sim help" -f -a "epochs" -d 'Time epochs over a directory: read every file, in a new random order each epoch'
complete -c larder -n "__fish_larder_using_subcommand bench; and not __fish_seen_subcommand_from epochs sim help" -f -a "sim" -d 'Simulate caching policies over shuffled epochs: hit ratios for any size of dataset, cache and cluster'
complete -c larder -n "__fish_larder_using_subcommand bench; and not __fish_seen_subcommand_from epochs sim help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l epochs -d 'Number of epochs' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l readers -d 'Reader threads' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l drop -d 'Which kernel caches to drop' -r -f -a "none\t'Drop nothing: later epochs are read from the page cache'
pages\t'Drop each file\'s pages after reading it, so that every epoch is read from the cache disk or the origin'
all\t'Drop all of the kernel\'s caches before each epoch (needs root)'"
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l files -d 'Read only the first N files of each epoch\'s order' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l expect -d 'Read the files on this list instead of all files in DIR, and verify them. Each line is SIZE CRC32C PATH' -r -F
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l seed -d 'Seed of the shuffles' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l plot -d 'Write a plot to this file' -r -F
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -l json -d 'Write the figures to this file' -r -F
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from epochs" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l files -d 'Number of files in the dataset' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l mean-size -d 'Mean file size. Sizes are between 16 KB and 5 MB, and repeat after a million files' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l cache -d 'Cache sizes of a node, as percentages of the dataset or in bytes' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l epochs -d 'Number of epochs; the first one fills the cache' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l nodes -d 'Numbers of nodes that share the work of each epoch' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l placement -d 'How the dataset is distributed over the nodes\' caches' -r -f -a "local\t'Each node caches the files that it reads, a different share of the dataset each epoch'
partitioned\t'Each block has one owner, and all nodes read it through the owner\'s cache'"
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l policies -d 'Policies: nr, smallest, lru, fifo, random, belady' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l seed -d 'Seed of the file sizes, the shuffles and the random policy' -r
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l plot -d 'Write a plot to this file' -r -F
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l json -d 'Write the figures to this file' -r -F
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -l equal-sizes -d 'Use the mean size for every file'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from sim" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "epochs" -d 'Time epochs over a directory: read every file, in a new random order each epoch'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "sim" -d 'Simulate caching policies over shuffled epochs: hit ratios for any size of dataset, cache and cluster'
complete -c larder -n "__fish_larder_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand version" -l kubeconfig -d 'The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod\'s service account' -r -F
complete -c larder -n "__fish_larder_using_subcommand version" -l context -d 'The kubeconfig context. Default: the current context' -r
complete -c larder -n "__fish_larder_using_subcommand version" -l all -d 'Show the programs that serve this machine\'s mounts, and the programs and definitions of the cluster'
complete -c larder -n "__fish_larder_using_subcommand version" -l json -d 'Print JSON'
complete -c larder -n "__fish_larder_using_subcommand version" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand version" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand help-page" -s v -l verbose -d 'Log to standard error (LARDER_LOG=debug logs more)'
complete -c larder -n "__fish_larder_using_subcommand help-page" -s h -l help -d 'Print help'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "quickstart" -d 'Demonstrate Larder: mount a dataset from an embedded S3 and read it for several epochs under each policy'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "import" -d 'List an origin once and write the dataset\'s manifest'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "pack" -d 'Copy a dataset of small files into packs of about 64 MiB, with a checksum per block'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "sync" -d 'Copy a dataset to another bucket, cloud or directory, as a mirror: only what is missing there'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "mount" -d 'Mount a dataset'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "umount" -d 'Unmount a dataset'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "warm" -d 'Fill the cache of a mount before it is read'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "plan" -d 'Say which files a program is going to read, so that they are fetched ahead of it'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "verify" -d 'Compare a mount, or a dataset at its origin, with its manifest'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "stats" -d 'Show the state and the hit ratio of mounts'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "top" -d 'Watch all mounts on this machine, or the caches of a cluster, on a screen'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "ui" -d 'Show this machine and a cluster on a page in the browser'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "cache" -d 'List the datasets in the cache, drop one, or keep its room'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "doctor" -d 'Check this machine and suggest fixes'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "devices" -d 'Show the GPUs and HCAs of this node: which pods hold them, and why a device is out of service'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "job" -d 'Submit, list, follow and cancel the training jobs of a Kubernetes cluster'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "queue" -d 'Show the queues of a Kubernetes cluster: quota, usage and waiting jobs'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "cluster" -d 'Show the clusters that jobs may run in, and let a home run jobs in one'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "explain" -d 'Explain why a job waits for a mount, why a Dataset or job is not ready, or why a pod was placed on its node'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "example" -d 'Print manifests to start from, filled with your bucket'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "bench" -d 'Time epochs over a directory, or simulate them. All other benchmarks are in larder-bench'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "version" -d 'Show the version of this command, of the programs behind this machine\'s mounts, and of a cluster\'s programs'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "help-page" -d 'Print the text of docs/COMMANDS.md'
complete -c larder -n "__fish_larder_using_subcommand help; and not __fish_seen_subcommand_from quickstart import pack sync mount umount warm plan verify stats top ui cache doctor devices job queue cluster explain example bench version help-page help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "ls" -d 'List the datasets in the cache, mounted or not'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "rm" -d 'Drop what is cached of a dataset that is not mounted'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "pin" -d 'Keep a dataset\'s room in the cache also while it is not mounted, so that no other dataset gets it'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "unpin" -d 'End a pin. The blocks stay until other datasets need their room'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "submit" -d 'Submit training jobs, from manifests or from flags'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "diff" -d 'Show what submitting manifests would change'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "list" -d 'List training jobs with their phase and its reason'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "top" -d 'Show the CPUs and the memory that jobs use'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "events" -d 'List the events of a job and of its pods'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "logs" -d 'Print the logs of a job\'s pods'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "cancel" -d 'Cancel jobs: delete them and their pods, or suspend them'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "resume" -d 'Resume suspended jobs'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from job" -f -a "convert" -d 'Convert Kubeflow\'s TFJobs, PyTorchJobs and MPIJobs to TrainingJobs'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "list" -d 'List the clusters that jobs may run in, with their free room'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "describe" -d 'Show one cluster: its room, its queues and the datasets that it holds'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "join" -d 'Let a home run jobs in a cluster, and print the objects that the home needs for it'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from explain" -f -a "dataset" -d 'Explain in one sentence why a Dataset is ready or not, what happens next and what to do'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from explain" -f -a "job" -d 'Explain in one sentence what a TrainingJob is waiting for, how it runs or how it ended, and what to do'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from explain" -f -a "pod" -d 'Explain in one sentence why a pod was placed on its node or is waiting, and list the score of each node'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "epochs" -d 'Time epochs over a directory: read every file, in a new random order each epoch'
complete -c larder -n "__fish_larder_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "sim" -d 'Simulate caching policies over shuffled epochs: hit ratios for any size of dataset, cache and cluster'
