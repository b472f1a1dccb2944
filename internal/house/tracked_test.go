package house

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoProgramIsTracked fails if git tracks an output of go build.
func TestNoProgramIsTracked(t *testing.T) {
	if _, err := os.Stat("../../.git"); errors.Is(err, fs.ErrNotExist) {
		t.Skip(err) // the sources are not a checkout
	}

	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	git.Dir = "../.."
	names, err := git.Output()
	if err != nil {
		t.Fatal(err)
	}

	for name := range strings.SplitSeq(string(bytes.TrimRight(names, "\x00")), "\x00") {
		if f, err := elf.Open(filepath.Join(git.Dir, name)); err == nil {
			f.Close()
			t.Errorf("%s is a program or library: remove it from git", name)
		}
	}
}
