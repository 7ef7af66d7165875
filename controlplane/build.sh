#!/usr/bin/env bash
# Builds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl
# from the modules pinned in go.mod into bin/ (or the folder given as $1).
# Does nothing when bin/ was already built from this very go.mod, go.sum, script and Go.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-bin}
mkdir -p "$out"
out=$(cd "$out" && pwd)

command -v go >/dev/null || {
  echo "controlplane: needs Go $(sed -n 's/^go //p' go.mod) or newer on PATH (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl" >&2
  exit 2
}
stamp=$(cat go.mod go.sum build.sh <(go version) | sha256sum | cut -d' ' -f1)
[ "$(cat "$out/.stamp" 2>/dev/null || true)" = "$stamp" ] && exit 0

# two starts at once build once
exec 9>"$out/.lock"
flock 9
[ "$(cat "$out/.stamp" 2>/dev/null || true)" = "$stamp" ] && exit 0

k8s=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=$(cut -d. -f2 <<<"$k8s")
v=k8s.io/component-base/version
# without these `kubectl version` cannot parse what the server answers
ld="-s -w -X $v.gitVersion=$k8s -X $v.gitMajor=1 -X $v.gitMinor=$minor -X $v.gitTreeState=clean"
echo "controlplane: building etcd and Kubernetes $k8s once; four to six minutes on two cores" >&2
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath -buildvcs=false"
go build -ldflags="$ld" -o "$out/" \
  go.etcd.io/etcd/server/v3 \
  k8s.io/kubernetes/cmd/kube-apiserver \
  k8s.io/kubernetes/cmd/kube-controller-manager \
  k8s.io/kubernetes/cmd/kube-scheduler \
  k8s.io/kubernetes/cmd/kubectl
mv "$out/server" "$out/etcd"
echo "$stamp" >"$out/.stamp"
