//! `kubectl exec` and `kubectl logs` of a placeholder reach the guest of that VM and nothing else: the real kubectl, API
//! server, operator and agent, a simulated Mac.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use macrack_acceptance::{Mac, Rack, mac::golden, objects};
use macrack_api::{MacOSInstance, instance::macos_instance::MacOSInstancePhase};
use macrack_testkit::{Namespace, child::is_alive, expect};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
const POD: &str = "macrack-vm-build-1";

/// The port of the agent, asked as whoever shows `with_certificate` of the cluster's admin, or nothing.
async fn direct(rack: &Rack, port: i32, with_certificate: bool) -> Result<u16> {
    let kubeconfig = Kubeconfig::read_from(rack.plane.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.cluster_url = format!("https://127.0.0.1:{port}").parse()?;
    if !with_certificate {
        config.auth_info = kube::config::AuthInfo::default();
    }
    let request = http::Request::get("/containerLogs/any/any/vm").body(Vec::new())?;
    // the serving certificate is judged by the cluster's own CA
    match Client::try_from(config)?.request_text(request).await {
        Ok(text) => anyhow::bail!("it was answered: {text}"),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(other) => Err(other.into()),
    }
}

/// Waits until `holds` of a file in the guest; there is no watch of it here.
async fn until_file(path: &std::path::Path) -> Result<String> {
    let written = async {
        loop {
            match std::fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(SOON, written).await.with_context(|| format!("{} is not written", path.display()))
}

#[tokio::test]
async fn a_tenants_kubectl_runs_commands_in_its_own_guest_and_reads_its_journal_and_nobody_elses_does() -> Result<()> {
    let rack = Rack::shared();
    let admin = rack.plane.admin().await?;
    let (ns, other) = (Namespace::fresh(rack.plane, "exec").await?, Namespace::fresh(rack.plane, "other").await?);
    let tenant = rack.tenant(ns.name()).await?;
    rack.tenant(other.name()).await?;
    let kubeconfig = async |namespace: &str| {
        let token = rack.plane.token(namespace, "tenant", None).await?;
        rack.plane.kubeconfig_for(&token)
    };
    let (mine, theirs) = (kubeconfig(ns.name()).await?, kubeconfig(other.name()).await?);
    objects::make(&admin, &objects::node_class("exec")).await?;
    objects::make(&admin, &objects::instance_class("exec-half")).await?;
    golden(rack, "exec-tahoe").await?;
    let mac = Mac::enrol(rack, "EXEC000001", "exec").await?;

    // its certificate: asked for, approved by the operator, signed by the cluster, named in the Node's status
    let requests: Api<CertificateSigningRequest> = Api::all(admin.clone());
    let signed = expect::until_seen(&requests, "macrack-serving-exec000001", "signed", SOON, |csr| {
        csr.status.as_ref().is_some_and(|status| status.certificate.is_some())
    });
    let conditions = signed.await.status.and_then(|status| status.conditions).unwrap_or_default();
    assert_eq!(conditions.first().and_then(|c| c.reason.as_deref()), Some("MacRackApproved"));
    let nodes: Api<Node> = Api::all(admin.clone());
    let port = |node: &Node| Some(node.status.as_ref()?.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port);
    let node =
        expect::until_seen(&nodes, "macrack-exec000001", "with its port", SOON, |node| port(node).is_some()).await;
    let port = port(&node).context("no port")?;
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "kube-node-lease");
    expect::until_seen(&leases, "macrack-exec000001", "renewed by its Node's agent", SOON, |lease| {
        let renewed = lease.spec.as_ref().is_some_and(|spec| spec.lease_duration_seconds == Some(40));
        renewed && lease.owner_references().iter().any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref())
    })
    .await;
    mac.agent.until_logged("has a serving certificate of the cluster", SOON).await?;
    assert_eq!(direct(rack, port, false).await?, 401, "nobody is answered without a certificate");
    assert_eq!(direct(rack, port, true).await?, 403, "nor with one of another name");

    // a VM with a first-boot script that has something to say
    objects::make_in(&tenant, ns.name(), &objects::lease("ci", "exec")).await?;
    let script: Secret = objects::object(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "boot" },
        "stringData": { "script": "#!/bin/sh\necho hello from the first boot\necho a second line\n" },
    }));
    objects::make_in(&tenant, ns.name(), &script).await?;
    let mut instance = serde_json::to_value(objects::instance("build-1", "ci", "exec-half", "exec-tahoe"))?;
    instance["spec"]["firstBoot"] = json!({ "scriptFrom": { "secretKeyRef": { "name": "boot", "key": "script" } } });
    let leases: Api<macrack_api::MacNodeLease> = Api::namespaced(tenant.clone(), ns.name());
    expect::until_seen(&leases, "ci", "Bound", SOON, |lease| {
        lease.status.as_ref().is_some_and(|status| status.bound_at.is_some())
    })
    .await;
    objects::make_in::<MacOSInstance>(&tenant, ns.name(), &serde_json::from_value(instance)?).await?;
    let instances: Api<MacOSInstance> = Api::namespaced(tenant.clone(), ns.name());
    let ready = expect::until_seen(&instances, "build-1", "Ready", SOON, |i| {
        i.status.as_ref().is_some_and(|s| s.phase == Some(MacOSInstancePhase::Ready))
    });
    let guest = mac.vm(&ready.await.uid().context("no uid")?).guest_root();

    let pods: Api<Pod> = Api::namespaced(tenant.clone(), ns.name());
    expect::until_seen(&pods, POD, "Running, where it is", SOON, |pod| {
        let status = pod.status.clone().unwrap_or_default();
        status.phase.as_deref() == Some("Running") && status.host_ip.as_deref() == Some("127.0.0.1")
    })
    .await;

    let exec = async |kubeconfig: &std::path::Path, command: &[&str]| {
        let mut arguments = vec!["-n", ns.name(), "exec", POD, "--"];
        arguments.extend(command);
        rack.plane.kubectl_as(kubeconfig, &arguments).await
    };
    let version = exec(&mine, &["sw_vers"]).await?.success()?;
    assert!(version.contains("ProductVersion:\t\t26."), "{version}");
    let failed = exec(&mine, &["sh", "-c", "echo out; echo err >&2; exit 3"]).await?;
    assert_eq!((failed.status.code(), failed.stdout.as_str()), (Some(3), "out\n"), "{failed:?}");
    assert!(failed.stderr.starts_with("err\n") && failed.stderr.contains("exit code 3"), "{failed:?}");
    let environment = exec(&mine, &["env"]).await?.success()?;
    assert!(!environment.contains("CARGO") && !environment.contains("KUBECONFIG"), "{environment}");
    let absent = exec(&mine, &["no-such-program"]).await?;
    assert!(!absent.status.success(), "{absent:?}");

    // a megabyte each way
    let megabyte: String = (0..(1 << 20)).map(|n: u32| char::from(b'a' + (n % 26) as u8)).collect();
    let echoed = rack.plane.kubectl_with(&["-n", ns.name(), "exec", "-i", POD, "--", "cat"], &megabyte).await?;
    assert_eq!(echoed.success()?.len(), megabyte.len());
    let counted = rack.plane.kubectl_with(&["-n", ns.name(), "exec", "-i", POD, "--", "wc", "-c"], &megabyte).await?;
    assert_eq!(counted.success()?.trim(), (1 << 20).to_string());
    let echoed = rack.plane.kubectl_with(&["-n", ns.name(), "exec", "-i", POD, "--", "cat"], &megabyte).await?;
    assert!(echoed.success()? == megabyte, "what came back is not what was sent");

    // nobody else, nothing else
    let foreign = exec(&theirs, &["true"]).await?;
    assert!(foreign.stderr.contains("Forbidden") || foreign.stderr.contains("forbidden"), "{foreign:?}");
    let container = ["-n", ns.name(), "exec", POD, "-c", "sidecar", "--", "true"];
    let container = rack.plane.kubectl_as(&mine, &container).await?;
    assert!(!container.status.success() && container.stderr.contains("sidecar"), "{container:?}");

    // what a VM has none of is refused in words, which name what there is instead
    for (command, says) in [
        (["attach", POD].as_slice(), "attach: a VM has no process to attach to; use kubectl exec -it POD -- zsh"),
        (["port-forward", POD, ":22"].as_slice(), "port-forward: not spoken by this Mac; copy through kubectl exec"),
    ] {
        let refused = rack.plane.kubectl_as(&mine, &[["-n", ns.name()].as_slice(), command].concat()).await?;
        assert!(!refused.status.success() && refused.stderr.contains(says), "{refused:?}");
    }

    // the client goes, and the command with it
    let pid_file = guest.join("pid");
    let mut client = tokio::process::Command::new(rack.plane.kubectl_path())
        .args(["-n", ns.name(), "exec", POD, "--", "sh", "-c", "echo $$ > pid; exec sleep 1000"])
        .env("KUBECONFIG", &mine)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid: i32 = until_file(&pid_file).await?.trim().parse()?;
    assert!(is_alive(pid));
    client.kill().await?;
    let gone = async {
        while is_alive(pid) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.context("the command outlived its client")?;

    // the journal
    let logs = async |more: &[&str]| {
        let mut arguments = vec!["-n", ns.name(), "logs", POD];
        arguments.extend(more);
        rack.plane.kubectl_as(&mine, &arguments).await?.success()
    };
    let all = logs(&[]).await?;
    // the script's lines are in their order, and what becomes of the VM may stand between them
    let boot: Vec<&str> = all.lines().filter(|line| line.starts_with("boot ")).collect();
    assert_eq!(boot, ["boot hello from the first boot", "boot a second line"], "{all}");
    for line in ["vm   the VM runs\n", "the guest is at Ready\n"] {
        assert!(all.contains(line), "{line:?} is not in\n{all}");
    }
    assert!(!all.contains('/'), "a path of the host is in\n{all}");
    assert_eq!(logs(&["--tail=1"]).await?.lines().count(), 1);
    assert_eq!(logs(&["--limit-bytes=7"]).await?, all[..7]);
    assert_eq!(logs(&["--since-time=2100-01-01T00:00:00Z"]).await?, "");
    assert!(logs(&["--timestamps", "--tail=1"]).await?.starts_with("20"));
    let foreign = rack.plane.kubectl_as(&theirs, &["-n", ns.name(), "logs", POD]).await?;
    assert!(foreign.stderr.contains("orbidden"), "{foreign:?}");
    let follower = ["-n", ns.name(), "logs", "-f", POD];
    let stopping = async {
        // follows from here: what is seen below was written after this
        let stopped = serde_json::json!({ "spec": { "powerState": "Stopped" } });
        let patch = kube::api::Patch::Merge(stopped);
        instances.patch("build-1", &Default::default(), &patch).await.map_err(anyhow::Error::from)
    };
    let (followed, stopped) = tokio::join!(rack.plane.kubectl_as(&mine, &follower), stopping);
    stopped?;
    let followed = followed?.success()?;
    assert!(followed.contains("the VM has stopped as it was told to"), "{followed}");
    let late = exec(&mine, &["true"]).await?;
    assert!(late.stderr.contains("does not run"), "{late:?}");
    Ok(())
}
