package sys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCreateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if f, err := CreateFile(path, 1<<60); err == nil {
		_ = f.Close()
		t.Fatal("CreateFile of an exbibyte succeeded; want an error")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat = %v; want no file after a failure", err)
	}
	f, err := CreateFile(path, 8192)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := FileSize(f); n != 8192 || err != nil {
		t.Errorf("FileSize = %d, %v; want 8192", n, err)
	}
	_ = f.Close()
	if _, err := CreateFile(path, 1); !errors.Is(err, os.ErrExist) {
		t.Errorf("CreateFile of an existing file = %v; want ErrExist", err)
	}
}
