package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"symmem/internal/reduce"
)

func TestEveryOperationHasKernels(t *testing.T) {
	if len(operations) != reduce.OpCount+1 || len(elements) != len(reduce.DataTypes()) {
		t.Errorf("got kernels for %d operations on %d types, want %d on %d", len(operations),
			len(elements), reduce.OpCount+1, len(reduce.DataTypes()))
	}
}

func TestCommittedKernelsAreCurrent(t *testing.T) {
	for _, set := range []instructionSet{avx512{}, avx2{}} {
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
