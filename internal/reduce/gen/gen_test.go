package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestCommittedKernelsMatchTheGenerator(t *testing.T) {
	for _, set := range []vectors{avx512{}, avx2{}} {
		path := filepath.Join("..", fileName(set))
		committed, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("reading committed kernels: %v", err)
		}
		if !bytes.Equal(committed, assemble(set)) {
			t.Errorf("%s is out of date: run go generate in internal/reduce", path)
		}
	}
}
