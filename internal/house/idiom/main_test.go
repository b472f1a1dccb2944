package main

import (
	"testing"
	"testing/fstest"
)

func TestTypicalWordsAreListedFirst(t *testing.T) {
	tree := func(comment string) fstest.MapFS {
		return fstest.MapFS{
			"a.go":          {Data: []byte("// Package a " + comment + ".\npackage a\n")},
			"a_test.go":     {Data: []byte("// Testing words are left out.\npackage a\n")},
			"testdata/b.go": {Data: []byte("not Go")},
		}
	}
	ours, theirs := counts{}, counts{}
	if err := ours.read(tree("tells nobody of a file, tells nobody of a size"), false); err != nil {
		t.Fatal(err)
	}

	if err := theirs.read(tree("returns the size of the file of the user"), false); err != nil {
		t.Fatal(err)
	}

	if ours["tells nobody"] != 2 || ours["file tells"] != 0 || ours["testing"] != 0 {
		t.Errorf("read counted %v, want the pair \"tells nobody\" twice", ours)
	}

	for i, w := range compare(ours, theirs, 3) {
		if w.ours != 2 || w.theirs != 0 {
			t.Errorf("compare: word %d = %+v, want one that occurs twice in ours and never in theirs", i, w)
		}
	}
}
