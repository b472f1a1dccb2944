package kernels

import "embed"

// Sources holds the sources of the kernels; Object returns what they were compiled to.
//
//go:embed src
var Sources embed.FS
