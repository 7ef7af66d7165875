//! Who else is in the network, for a request that nothing else stands against: read from the API server itself each time.
//! The caches hold the Macs' Nodes alone, and with the address of another Node, or of the API server, a certificate would
//! answer in that one's place. What cannot be read is not taken for nobody.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::{Api, Client, Config, ResourceExt};
use macrack_core::decide::csr::{Block, Others, all_addresses};

/// Nodes that are read at once.
const PAGE: u32 = 500;
/// The API server as a Service: its name, in namespace `default`. The API server makes it itself.
const API_SERVER: &str = "kubernetes";
/// By which a Service's EndpointSlices are found (Kubernetes, well-known labels).
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// The host by which this process reaches the API server: a Service's address inside the cluster, whatever the kubeconfig
/// names outside.
pub fn api_server_host(config: &Config) -> Option<String> {
    config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned())
}

/// Where to look.
pub(super) struct Around {
    client: Client,
    api_server: Option<String>,
}

impl Around {
    pub(super) fn new(client: Client, api_server: Option<String>) -> Self {
        Self { client, api_server }
    }

    /// Everybody but the Node of that name, in words why not.
    pub(super) async fn others(&self, own: &str) -> Result<Others, String> {
        let (reached, service, endpoints, services, (nodes, pods)) = tokio::try_join!(
            self.reached(),
            self.service(),
            self.endpoints(),
            self.service_blocks(),
            self.nodes(own),
        )?;
        Ok(Others {
            api_server: [reached, service, endpoints].concat(),
            nodes,
            blocks: services.into_iter().chain(pods).collect(),
        })
    }

    /// The API server as the operator reaches it.
    async fn reached(&self) -> Result<Vec<IpAddr>, String> {
        let Some(host) = &self.api_server else { return Ok(Vec::new()) };
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let found = tokio::net::lookup_host((host.as_str(), 0)).await;
        let found = found.map_err(|error| format!("the addresses of the API server's name {host}: {error}"))?;
        Ok(found.map(|socket| socket.ip()).collect())
    }

    /// The API server as pods reach it.
    async fn service(&self) -> Result<Vec<IpAddr>, String> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), "default");
        let service = services.get_opt(API_SERVER).await.map_err(unread("Service default/kubernetes"))?;
        let Some(spec) = service.and_then(|service| service.spec) else { return Ok(Vec::new()) };
        let lists = [spec.cluster_ips, spec.external_ips];
        let all = lists.into_iter().flatten().flatten().chain(spec.cluster_ip).chain(spec.load_balancer_ip);
        Ok(all.filter_map(|address| address.parse().ok()).collect()) // `None` stands for no address
    }

    /// The API servers themselves.
    async fn endpoints(&self) -> Result<Vec<IpAddr>, String> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "default");
        let of_it = ListParams::default().labels(&format!("{OF_SERVICE}={API_SERVER}"));
        let slices = slices.list(&of_it).await.map_err(unread("the EndpointSlices of Service default/kubernetes"))?;
        let all = slices.items.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
        // an endpoint may be a name (addressType FQDN), never that of a Node
        Ok(all.flat_map(|endpoint| endpoint.addresses).filter_map(|address| address.parse().ok()).collect())
    }

    /// What Services are given their addresses from.
    async fn service_blocks(&self) -> Result<Vec<(String, Block)>, String> {
        let all: Api<ServiceCIDR> = Api::all(self.client.clone());
        let all = match all.list(&ListParams::default()).await {
            Ok(all) => all.items,
            // an API server that does not serve the kind (before Kubernetes 1.33) says so itself
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(unread("the ServiceCIDRs")(error)),
        };
        let mut blocks = Vec::new();
        for one in all {
            let whose = format!("the addresses of Services (ServiceCIDR {})", one.name_any());
            for text in one.spec.and_then(|spec| spec.cidrs).unwrap_or_default() {
                blocks.push((whose.clone(), block(&text, &whose)?));
            }
        }
        Ok(blocks)
    }

    /// The addresses of all other Nodes, and what the pods of any Node are given theirs from.
    async fn nodes(&self, own: &str) -> Result<(Vec<(String, IpAddr)>, Vec<(String, Block)>), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (mut addresses, mut blocks) = (Vec::new(), Vec::new());
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = nodes.list(&page).await.map_err(unread("the Nodes"))?;
            for node in &list.items {
                let name = node.name_any();
                let spec = node.spec.as_ref();
                let of_pods = spec.and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
                let whose = format!("the addresses of pods (podCIDR of Node {name})");
                for text in of_pods {
                    blocks.push((whose.clone(), block(&text, &whose)?));
                }
                if name != own {
                    addresses.extend(all_addresses(node).into_iter().map(|address| (name.clone(), address)));
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok((addresses, blocks)),
            }
        }
    }
}

fn block(text: &str, whose: &str) -> Result<Block, String> {
    text.parse().map_err(|no| format!("{whose}: {no}"))
}

fn unread(what: &str) -> impl FnOnce(kube::Error) -> String {
    move |error| format!("{what} cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_kubeconfig_is_an_address_or_a_name_without_brackets() {
        let host = |url: &str| api_server_host(&Config::new(url.parse().unwrap()));
        assert_eq!(host("https://203.0.113.5:6443").as_deref(), Some("203.0.113.5"));
        assert_eq!(host("https://[2001:db8::1]:6443").as_deref(), Some("2001:db8::1"));
        assert_eq!(host("https://api.example.com").as_deref(), Some("api.example.com"));
    }
}
