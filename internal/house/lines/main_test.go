package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestCountLines(t *testing.T) {
	tree := fstest.MapFS{}
	for name, text := range map[string]string{
		"a.go":            "// Package a.\npackage a\n\n/* a\nb */\nvar x = `1\n\n2` // y\n\nvar y int\n",
		"b/b.go":          "package b\n",
		"b/b_test.go":     "package b\n",
		"b/testdata/c.go": "package c\n",
		".x/d.go":         "package d\n",
		"b/e.txt":         "package e\n",
	} {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}

	var out strings.Builder
	if err := run(tree, &out); err != nil {
		t.Fatal(err)
	}

	if want := "     5  .\n     1  b\n     6  in all\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
