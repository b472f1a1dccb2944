package kernels

import "embed"

// Sources contains the source code of the kernels. Object returns the compiled code.
//
//go:embed src
var Sources embed.FS
