package softgpu

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
)

// filling fills folders with one file, and counts them.
type filling struct{ times atomic.Int32 }

func (f *filling) fill(dir string) error {
	f.times.Add(1)
	return os.WriteFile(filepath.Join(dir, "library"), []byte("new"), 0o600)
}

// has fails the test unless a folder of the cache has exactly the file and the mark. It also fails
// the test unless the given number of folders were filled.
func (c cache) has(t *testing.T, f *filling, key string, times int32) {
	t.Helper()
	dir, err := c.folder(key, f.fill)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "library"))
	if err != nil || string(text) != "new" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the folder has %v, %v, want the library and the mark", entries, err)
	}
	if n := f.times.Load(); n != times {
		t.Errorf("folders were filled %d times, want %d", n, times)
	}
}

// TestCacheWithoutAHomeDirectory also checks that the cache refuses a folder to which another user
// can write.
func TestCacheWithoutAHomeDirectory(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("TMPDIR", t.TempDir())
	c, err := userCache()
	if err != nil {
		t.Fatal(err)
	}
	c.has(t, &filling{}, "key", 1)
	if err := os.Chmod(c.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := userCache(); err == nil {
		t.Error("a folder that all users can write to was accepted")
	}
}

func TestIncompleteFolderIsFilledAgain(t *testing.T) {
	c, f := cache{t.TempDir()}, &filling{}
	c.has(t, f, "key", 1)
	if err := os.Remove(filepath.Join(c.dir, "key", completeMark)); err != nil {
		t.Fatal(err)
	}
	c.has(t, f, "key", 2)
}

func TestConcurrentCallsFillOnce(t *testing.T) {
	c, f := cache{t.TempDir()}, &filling{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := c.folder("key", f.fill); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	c.has(t, f, "key", 1)
}

func TestUnfinishedFoldersAreRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filling{}
	half := filepath.Join(c.dir, unfinishedPrefix+"1")
	err := errors.Join(os.Mkdir(half, 0o700),
		os.WriteFile(filepath.Join(half, "library"), []byte("half"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	c.has(t, f, "key", 1)
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished folder exists: %v", err)
	}
}

func TestFailedFillLeavesNothing(t *testing.T) {
	c, f := cache{t.TempDir()}, &filling{}
	broken := errors.New("broken")
	_, err := c.folder("key", func(dir string) error { return errors.Join(f.fill(dir), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if left, err := os.ReadDir(c.dir); err != nil || len(left) != 1 || left[0].Name() != "lock" {
		t.Errorf("found %v, %v, want only the lock", left, err)
	}
	c.has(t, f, "key", 2)
}

func TestUnusedFoldersAreRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filling{}
	old := time.Now().Add(-unusedTime - time.Hour)
	c.has(t, f, "used", 1)
	c.has(t, f, "unused", 2)
	for _, key := range []string{"used", "unused"} {
		if err := os.Chtimes(filepath.Join(c.dir, key), old, old); err != nil {
			t.Fatal(err)
		}
	}
	c.has(t, f, "used", 2)
	c.has(t, f, "another", 3)
	if _, err := os.Stat(filepath.Join(c.dir, "unused")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder exists: %v", err)
	}
	c.has(t, f, "used", 3)
}

func TestKeysDependOnSourcesAndFlags(t *testing.T) {
	keys := map[string]bool{}
	for _, text := range []string{"int a;", "int b;"} {
		for _, flags := range [][]string{nil, {"-O1"}, {"-O1 -g"}, {"-O1", "-g"}} {
			key, err := keyOf(flags, fstest.MapFS{"a.c": {Data: []byte(text)}})
			if err != nil {
				t.Fatal(err)
			}
			keys[key] = true
		}
	}
	if len(keys) != 8 {
		t.Errorf("8 combinations have %d keys", len(keys))
	}
}
