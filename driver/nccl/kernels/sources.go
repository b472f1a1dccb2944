package kernels

import "embed"

// Sources are the kernels as they are written; Object is what was made of them.
//
//go:embed src
var Sources embed.FS
