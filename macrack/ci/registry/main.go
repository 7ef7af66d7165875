// The reference registry of the distribution project, with what MacRack's tests need of it: blobs on
// this machine's disk, anonymous or by bearer token. Its own command links every cloud's client as well
// and takes five times as long to build.
package main

import (
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"

	"github.com/distribution/distribution/v3/registry"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		panic(err)
	}
}
