//! The keyring of the Secret, read once, watched, and handed out. Invariant: what is in memory was in the Secret; a
//! Secret that vanished is written again with the same keys by whoever still has them.

use std::{convert::Infallible, fmt, pin::pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use rustls::server::ResolvesServerCert;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::{Error, REPORT_KEY_BYTES, keyring::Keyring, leaf::Leaf};

/// Says what time it is.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Rounds of reading and writing; each ends, or another writer has won meanwhile.
const ROUNDS: usize = 10;
/// The times of renewal are years apart, but clocks jump: they are looked at this often.
const LOOK: Duration = Duration::from_secs(3600);
/// Before a failed look at the Secret is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// The certificate authority and the report key of an installation. Clones are the same one.
#[derive(Clone)]
pub struct Authority {
    secrets: Api<Secret>,
    namespace: String,
    name: String,
    shared: Arc<Shared>,
}

/// What certificates need at the moment that they are shown.
pub(crate) struct Shared {
    keyring: ArcSwap<Keyring>,
    clock: Clock,
    bundle: watch::Sender<String>,
}

impl Shared {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) fn keyring(&self) -> Arc<Keyring> {
        self.keyring.load_full()
    }

    fn take(&self, keyring: Keyring) {
        let bundle = keyring.bundle(self.now());
        self.keyring.store(Arc::new(keyring));
        self.bundle.send_if_modified(|told| {
            let differs = *told != bundle;
            *told = bundle;
            differs
        });
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}/{})", self.namespace, self.name)
    }
}

impl Authority {
    /// The keys of that Secret, which is made when there is none.
    ///
    /// # Errors
    /// When the Secret cannot be read or made, or holds something else ([`Error::Foreign`]).
    pub async fn open(client: Client, namespace: &str, secret_name: &str) -> Result<Self, Error> {
        Self::open_at(client, namespace, secret_name, Arc::new(Timestamp::now)).await
    }

    /// As [`Authority::open`], by another clock.
    ///
    /// # Errors
    /// As [`Authority::open`].
    pub async fn open_at(client: Client, namespace: &str, secret_name: &str, clock: Clock) -> Result<Self, Error> {
        let secrets: Api<Secret> = Api::namespaced(client, namespace);
        let store = Store {
            secrets: &secrets,
            namespace,
            name: secret_name,
        };
        let now = clock();
        let keyring = store.settle(now, None).await?;
        let (bundle, _) = watch::channel(keyring.bundle(now));
        Ok(Self {
            shared: Arc::new(Shared {
                keyring: ArcSwap::from_pointee(keyring),
                clock,
                bundle,
            }),
            secrets,
            namespace: namespace.to_owned(),
            name: secret_name.to_owned(),
        })
    }

    /// What others are to trust: every authority that is valid now, PEM.
    pub fn ca_pem(&self) -> String {
        self.shared.keyring().bundle(self.shared.now())
    }

    /// [`Authority::ca_pem`] as it changes: whoever told others of it tells them again.
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.shared.bundle.subscribe()
    }

    /// The key from which the tokens of guests are made.
    pub fn report_key(&self) -> Zeroizing<[u8; REPORT_KEY_BYTES]> {
        self.shared.keyring().report_key()
    }

    /// A certificate for a server of these DNS names and IP addresses. It is renewed in place: ninety days long,
    /// thirty before its end, and at once when another authority signs.
    ///
    /// # Errors
    /// When a name is neither a DNS name nor an address, or there is none.
    pub fn leaf<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Arc<dyn ResolvesServerCert>, Error> {
        let names = names.into_iter().map(Into::into).collect();
        Ok(Arc::new(Leaf::new(names, Arc::clone(&self.shared))?))
    }

    /// Looks at the Secret once: takes what another replica wrote, publishes a successor that is due, and writes a
    /// Secret that vanished again.
    ///
    /// # Errors
    /// As [`Authority::open`]; the keys in memory stay.
    pub async fn refresh(&self) -> Result<(), Error> {
        let store = Store {
            secrets: &self.secrets,
            namespace: &self.namespace,
            name: &self.name,
        };
        let held = self.shared.keyring();
        let keyring = store.settle(self.shared.now(), Some(&held)).await?;
        self.shared.take(keyring);
        Ok(())
    }

    /// [`Authority::refresh`] whenever the Secret changes, and every hour, also while it cannot be watched. Runs until it
    /// is dropped.
    pub async fn keep(&self) -> Infallible {
        self.keep_looking(LOOK).await
    }

    /// As [`Authority::keep`], with another time than an hour.
    pub async fn keep_looking(&self, every: Duration) -> Infallible {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let changes = watcher(self.secrets.clone(), only).default_backoff();
        // a watcher does not end; if it did, the clock would still be looked at
        let mut changes = pin!(changes.chain(futures::stream::pending()));
        let mut looks = tokio::time::interval(every);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                change = changes.next() => match change {
                    Some(Err(error)) => {
                        tracing::warn!(%error, secret = self.name, "the Secret is not watched; the watch starts again");
                        continue;
                    }
                    Some(Ok(watcher::Event::Init | watcher::Event::InitApply(_))) => continue,
                    _ => {}
                },
            }
            while let Err(error) = self.refresh().await {
                tracing::error!(%error, "the keys in memory are used on");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The Secret as a place.
struct Store<'a> {
    secrets: &'a Api<Secret>,
    namespace: &'a str,
    name: &'a str,
}

impl Store<'_> {
    /// The keyring that the Secret holds at the end: what is there, renewed where due; `held` or new keys when there
    /// is no Secret.
    async fn settle(&self, now: Timestamp, held: Option<&Keyring>) -> Result<Keyring, Error> {
        for _ in 0..ROUNDS {
            let found = self.secrets.get_opt(self.name).await.map_err(self.api("read"))?;
            let (wanted, written) = match found {
                None => {
                    let wanted = match held {
                        Some(held) => held.clone(),
                        None => Keyring::make(now).map_err(Error::Made)?,
                    };
                    let written = self.secrets.create(&PostParams::default(), &self.secret(&wanted)).await;
                    (wanted, written.map_err(self.api("create")))
                }
                Some(mut secret) => {
                    let stored =
                        Keyring::read(&secret.data.take().unwrap_or_default()).map_err(|fault| Error::Foreign {
                            secret: self.label(),
                            fault,
                        })?;
                    let Some(wanted) = stored.renewed(now).map_err(Error::Made)? else {
                        return Ok(stored);
                    };
                    // carries the resourceVersion that was read
                    secret.data = Some(wanted.data());
                    let written = self.secrets.replace(self.name, &PostParams::default(), &secret).await;
                    (wanted, written.map_err(self.api("update")))
                }
            };
            match written {
                Ok(_) => return Ok(wanted),
                // somebody was faster (AlreadyExists, Conflict), or deleted it meanwhile
                Err(Error::Api { source, .. })
                    if matches!(&*source, kube::Error::Api(status) if matches!(status.code, 404 | 409))
                        && !namespace_is_missing(&source) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Contested { secret: self.label() })
    }

    fn secret(&self, keyring: &Keyring) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(self.name.to_owned()),
                namespace: Some(self.namespace.to_owned()),
                labels: Some([("app.kubernetes.io/managed-by".to_owned(), "dockerios".to_owned())].into()),
                ..ObjectMeta::default()
            },
            data: Some(keyring.data()),
            ..Secret::default()
        }
    }

    fn label(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn api(&self, verb: &'static str) -> impl FnOnce(kube::Error) -> Error {
        let secret = self.label();
        move |source| Error::Api {
            secret,
            verb,
            source: Box::new(source),
        }
    }
}

/// A create that is answered 404 has no namespace to go to: trying again does not help.
fn namespace_is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.message.contains("namespaces"))
}
