//! The server as the launcher meets it: a real client over the unix socket of the real binary.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use dockerios_domain_hook::proto::{
    info::{InfoParams, info_client::InfoClient},
    v1alpha1, v1alpha2, v1alpha3,
};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tower::service_fn;

use crate::world::{FRESH, KEY, MACHINE, READBACK, changed};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    process: Child,
    folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(key: &str, grace_seconds: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sockets")).unwrap();
        std::fs::write(folder.path().join("key"), key).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_dockerios-domain-hook"))
            .arg("serve")
            .args([Path::new("--osk-file"), &folder.path().join("key")])
            .args([Path::new("--socket-directory"), &folder.path().join("sockets")])
            .args(["--grace-seconds", &grace_seconds.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.folder.path().join("sockets")).unwrap();
        listed.map(|entry| entry.unwrap().path()).collect()
    }

    /// Looks for the socket as the launcher does, and connects.
    async fn connect(&self) -> Channel {
        let began = Instant::now();
        loop {
            if let [socket] = &self.sockets()[..]
                && let Ok(channel) = dial(socket.clone()).await
            {
                return channel;
            }
            assert!(began.elapsed() < PATIENCE, "no socket answers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn said(&mut self) -> String {
        std::io::read_to_string(self.process.stderr.take().unwrap()).unwrap()
    }
}

async fn dial(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://hook.invalid")
        .connect_with_connector(connector)
        .await
}

fn asked(domain: &str) -> v1alpha3::OnDefineDomainParams {
    v1alpha3::OnDefineDomainParams {
        domain_xml: domain.into(),
        vmi: MACHINE.into(),
    }
}

#[tokio::test]
async fn a_boot_as_the_launcher_plays_it_info_domain_twice_shutdown() {
    let mut server = Server::start(KEY, 60);
    let channel = server.connect().await;
    let info = InfoClient::new(channel.clone())
        .info(InfoParams {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.name, "dockerios-domain-hook");
    assert_eq!(info.versions, ["v1alpha1", "v1alpha2", "v1alpha3"]);
    let points: Vec<&str> = info.hook_points.iter().map(|point| point.name.as_str()).collect();
    assert_eq!(points, ["OnDefineDomain", "Shutdown"]);

    let mut hook = v1alpha3::callbacks_client::CallbacksClient::new(channel);
    let first = hook
        .on_define_domain(asked(FRESH))
        .await
        .unwrap()
        .into_inner()
        .domain_xml;
    let first = String::from_utf8(first).unwrap();
    assert_eq!(first, changed(FRESH, &[]).unwrap());
    // once more on its own answer, then on what libvirt reads back of it
    for (pass, wanted) in [(first.as_str(), &first), (READBACK, &changed(READBACK, &[]).unwrap())] {
        let answer = hook
            .on_define_domain(asked(pass))
            .await
            .unwrap()
            .into_inner()
            .domain_xml;
        assert_eq!(String::from_utf8(answer).unwrap(), *wanted);
    }

    hook.shutdown(v1alpha3::ShutdownParams {}).await.unwrap();
    assert_eq!(
        server.ended().await.code(),
        Some(0),
        "the client's connection is still open"
    );
    assert_eq!(server.sockets(), Vec::<PathBuf>::new());
    let said = server.said();
    assert!(said.contains("OnDefineDomain studio/mac-07: changed"), "{said}");
    assert!(
        said.contains("OnDefineDomain studio/mac-07: nothing was missing"),
        "{said}"
    );
    assert!(
        !said.contains(KEY) && !said.contains("made-up"),
        "the key is in the log"
    );
}

#[tokio::test]
async fn each_version_gives_the_same_answer_and_cloud_init_comes_back_as_it_was() {
    let server = Server::start(KEY, 60);
    let channel = server.connect().await;
    let wanted = changed(FRESH, &[]).unwrap().into_bytes();
    let (domain_xml, vmi) = (FRESH.as_bytes().to_vec(), MACHINE.as_bytes().to_vec());
    let mut one = v1alpha1::callbacks_client::CallbacksClient::new(channel.clone());
    let request = v1alpha1::OnDefineDomainParams {
        domain_xml: domain_xml.clone(),
        vmi: vmi.clone(),
    };
    assert_eq!(
        one.on_define_domain(request).await.unwrap().into_inner().domain_xml,
        wanted
    );
    let mut two = v1alpha2::callbacks_client::CallbacksClient::new(channel.clone());
    let request = v1alpha2::OnDefineDomainParams {
        domain_xml,
        vmi: vmi.clone(),
    };
    assert_eq!(
        two.on_define_domain(request).await.unwrap().into_inner().domain_xml,
        wanted
    );
    let (source, data) = (b"no-cloud".to_vec(), b"{}".to_vec());
    let request = v1alpha2::PreCloudInitIsoParams {
        cloud_init_no_cloud_source: source.clone(),
        vmi: vmi.clone(),
        cloud_init_data: data.clone(),
    };
    let answer = two.pre_cloud_init_iso(request).await.unwrap().into_inner();
    assert_eq!(
        (answer.cloud_init_no_cloud_source, answer.cloud_init_data),
        (source.clone(), data.clone())
    );
    let mut three = v1alpha3::callbacks_client::CallbacksClient::new(channel);
    let request = v1alpha3::PreCloudInitIsoParams {
        cloud_init_no_cloud_source: source.clone(),
        vmi,
        cloud_init_data: data.clone(),
    };
    let answer = three.pre_cloud_init_iso(request).await.unwrap().into_inner();
    assert_eq!(
        (answer.cloud_init_no_cloud_source, answer.cloud_init_data),
        (source, data)
    );
}

#[tokio::test]
async fn a_refusal_reaches_the_launcher_with_its_reason_and_the_server_goes_on() {
    let mut server = Server::start(KEY, 60);
    let mut hook = v1alpha3::callbacks_client::CallbacksClient::new(server.connect().await);
    let nothing = v1alpha3::OnDefineDomainParams {
        domain_xml: FRESH.into(),
        vmi: b"{}".to_vec(),
    };
    for (request, says) in [
        (
            asked("<domain><os><type machine='q35'/></os><devices/></domain>"),
            "DiskNotFound: domain XML: no disk has the alias \"ua-boot-image\"",
        ),
        (nothing, "AnnotationAbsent: "),
        (
            v1alpha3::OnDefineDomainParams {
                domain_xml: vec![0xff],
                vmi: MACHINE.into(),
            },
            "DomainUnreadable: ",
        ),
    ] {
        let status = hook.on_define_domain(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().starts_with(says), "{}", status.message());
    }
    assert!(hook.on_define_domain(asked(FRESH)).await.is_ok());
    hook.shutdown(v1alpha3::ShutdownParams {}).await.unwrap();
    server.ended().await;
    let said = server.said();
    assert!(said.contains("OnDefineDomain refused: DiskNotFound"), "{said}");
}

#[tokio::test]
async fn sigterm_at_the_start_of_the_grace_period_is_outlived_until_shutdown() {
    let mut server = Server::start(KEY, 3600);
    let mut hook = v1alpha3::callbacks_client::CallbacksClient::new(server.connect().await);
    server.terminate();
    // a second one changes nothing either
    server.terminate();
    for _ in 0..20 {
        assert!(hook.on_define_domain(asked(FRESH)).await.is_ok());
    }
    assert_eq!(server.process.try_wait().unwrap(), None, "ended before Shutdown");
    // a launcher may also come anew
    assert!(
        InfoClient::new(server.connect().await)
            .info(InfoParams {})
            .await
            .is_ok()
    );
    hook.shutdown(v1alpha3::ShutdownParams {}).await.unwrap();
    assert_eq!(server.ended().await.code(), Some(0));
    let said = server.said();
    assert!(said.contains("SIGTERM: serving on"), "{said}");
}

#[tokio::test]
async fn without_shutdown_the_end_of_the_grace_period_is_an_end_with_success() {
    let mut server = Server::start(KEY, 1);
    let _open = server.connect().await;
    server.terminate();
    assert_eq!(server.ended().await.code(), Some(0));
    assert_eq!(server.sockets(), Vec::<PathBuf>::new());
    let said = server.said();
    assert!(said.contains("the grace period is over"), "{said}");
}

#[tokio::test]
async fn a_server_without_a_key_ends_before_there_is_a_socket() {
    let mut server = Server::start("too-short", 60);
    assert_eq!(server.ended().await.code(), Some(2));
    assert_eq!(server.sockets(), Vec::<PathBuf>::new());
    let said = server.said();
    assert!(
        said.contains("holds 9 bytes, not 64") && !said.contains("too-short"),
        "{said}"
    );
}

#[tokio::test]
async fn sockets_of_two_machines_have_different_names() {
    let (one, other) = (Server::start(KEY, 60), Server::start(KEY, 60));
    let (_one, _other) = (one.connect().await, other.connect().await);
    assert_ne!(one.sockets()[0].file_name(), other.sockets()[0].file_name());
}
