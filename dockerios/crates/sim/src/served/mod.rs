//! What the API server asks of the simulator over TLS: admission webhooks, and the aggregated subresources.

mod picture;
mod subresources;
mod tls;
mod webhooks;

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;

use crate::world::World;

/// Where it is served, and the certificate authority that its certificate is from.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) authority: String,
}

/// Begins to serve; goes on until the task set is dropped.
pub(crate) async fn serve(world: &Arc<World>, tasks: &mut tokio::task::JoinSet<()>) -> Result<Served> {
    let (listener, address, authority) = tls::listen(world.options.listen).await?;
    let app = webhooks::routes()
        .merge(subresources::routes())
        .with_state(world.clone());
    tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!("serving ended: {error}");
        }
    });
    Ok(Served { address, authority })
}
