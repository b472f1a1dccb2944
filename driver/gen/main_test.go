package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"symmem/driver"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	const root = "../.."
	all, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}

	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}

		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date: run go generate ./driver", name)
		}
	}
}

func TestLoadReadsConstantsFromSource(t *testing.T) {
	data, err := loadTerms("..")
	if err != nil {
		t.Fatal(err)
	}

	if len(data.Reductions) != driver.ReduceOps || len(data.Operations) != driver.Operations {
		t.Errorf("found %d reductions and %d operations, want %d and %d", len(data.Reductions),
			len(data.Operations), driver.ReduceOps, driver.Operations)
	}

	for i, o := range data.Operations {
		if name := driver.Operation(i).String(); name != o.Go {
			t.Errorf("operation %d is %s in the table and %s in the source", i, name, o.Go)
		}
	}

	if _, err := constantsBefore("../operation.go", "None"); err == nil {
		t.Error("constants returned no error for a constant that does not exist")
	}
}

func TestHeaderMustHaveEnumerations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "symmem.h")
	if err := os.WriteFile(path, []byte("/* Reductions. */\n"), 0o644); err != nil {
		t.Fatal(err)
	}

	if _, err := replaceEnumerations(path, []byte("/* A list. */\nenum {\n};\n")); err == nil {
		t.Error("replaceEnumerations returned no error for a header without enumerations")
	}
}

func TestSnakeCase(t *testing.T) {
	for name, want := range map[string]string{
		"AllReduce": "all_reduce", "AllToAllV": "all_to_all_v", "Send": "send",
	} {
		if got := toSnakeCase(name); got != want {
			t.Errorf("snake(%s) = %s, want %s", name, got, want)
		}
	}
}
