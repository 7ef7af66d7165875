//! Turns `proto/` into Rust, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["info.proto", "v1alpha1.proto", "v1alpha2.proto", "v1alpha3.proto"];
    let described = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(described)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
