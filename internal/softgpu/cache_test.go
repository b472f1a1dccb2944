package softgpu

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

// A cache has a folder for each key, which a function fills when it is first needed. A mark in the
// folder shows that it is complete.

// filler fills folders as a compiler would, and counts them.
type filler struct{ filled atomic.Int32 }

func (f *filler) fill(dir string) error {
	f.filled.Add(1)
	return os.WriteFile(filepath.Join(dir, "library"), []byte("new"), 0o600)
}

// checkFolder finds the folder for a key, or lets f fill it. It checks that the folder contains
// only the library and the mark of a complete folder, and that f has filled wantFilled folders
// since the start of the test.
func (c cache) checkFolder(t *testing.T, f *filler, key string, wantFilled int32) {
	t.Helper()
	dir, err := c.findOrCreate(key, f.fill)
	if err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(filepath.Join(dir, "library"))
	if err != nil || string(text) != "new" {
		t.Errorf("library = %q, %v; want %q", text, err, "new")
	}

	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the folder contains %v (error %v); want the library and the mark", entries, err)
	}

	if n := f.filled.Load(); n != wantFilled {
		t.Errorf("%d folders were filled, want %d", n, wantFilled)
	}
}

// TestCacheWithoutHomeDirectory makes userCache use the folder for temporary files. There, other
// users could have created its folder, so userCache must refuse one that they can write to.
func TestCacheWithoutHomeDirectory(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("TMPDIR", t.TempDir())
	c, err := userCache()
	if err != nil {
		t.Fatal(err)
	}

	c.checkFolder(t, &filler{}, "key", 1)
	if err := os.Chmod(c.dir, 0o777); err != nil {
		t.Fatal(err)
	}

	if _, err := userCache(); err == nil {
		t.Error("userCache accepted a folder that all users can write to")
	}
}

// TestIncompleteFolderIsFilledAgain removes the mark of a complete folder. The next call must fill
// the folder again.
func TestIncompleteFolderIsFilledAgain(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	c.checkFolder(t, f, "key", 1)
	if err := os.Remove(filepath.Join(c.dir, "key", completeFile)); err != nil {
		t.Fatal(err)
	}

	c.checkFolder(t, f, "key", 2)
}

// TestConcurrentCallsFillOnce calls findOrCreate with one key in several goroutines.
func TestConcurrentCallsFillOnce(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if _, err := c.findOrCreate("key", f.fill); err != nil {
				t.Error(err)
			}
		})
	}

	callers.Wait()
	c.checkFolder(t, f, "key", 1)
}

// TestKeysAreFilledAtTheSameTime fills the folder of a key while it fills that of another key,
// which would block if both used one lock.
func TestKeysAreFilledAtTheSameTime(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	_, err := c.findOrCreate("outer", func(dir string) error {
		c.checkFolder(t, f, "inner", 1)
		return f.fill(dir)
	})
	if err != nil {
		t.Fatal(err)
	}

	c.checkFolder(t, f, "outer", 2)
}

// TestUnfinishedFoldersAreRemoved creates a folder like one in which a compiler was killed. The
// cache must remove it only when it is older than unfinishedLimit.
func TestUnfinishedFoldersAreRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	unfinished := filepath.Join(c.dir, unfinishedPrefix+"1")
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		t.Fatal(err)
	}

	library := filepath.Join(unfinished, "library")
	if err := os.WriteFile(library, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}

	c.checkFolder(t, f, "recent", 1)
	if _, err := os.Stat(unfinished); err != nil {
		t.Errorf("a folder that a compiler may be filling was removed: %v", err)
	}

	old := time.Now().Add(-unfinishedLimit - time.Minute)
	if err := os.Chtimes(unfinished, old, old); err != nil {
		t.Fatal(err)
	}

	c.checkFolder(t, f, "key", 2)
	if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the unfinished folder = %v, want ErrNotExist", err)
	}
}

// TestFailedFillLeavesNothing fills a folder, and then returns an error. The cache must remove the
// folder, and a later call must fill it again.
func TestFailedFillLeavesNothing(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	errFill := errors.New("broken")
	_, err := c.findOrCreate("key", func(dir string) error {
		if err := f.fill(dir); err != nil {
			t.Error(err)
		}

		return errFill
	})
	if !errors.Is(err, errFill) {
		t.Errorf("findOrCreate = %v, want %v", err, errFill)
	}

	remaining, err := os.ReadDir(c.dir)
	if err != nil || len(remaining) != 1 || remaining[0].Name() != "key"+lockSuffix {
		t.Errorf("the cache contains %v (error %v); want only the lock", remaining, err)
	}

	c.checkFolder(t, f, "key", 2)
}

// TestUnusedFoldersAreRemoved makes two folders older than unusedLimit and uses one of them. When
// another folder is filled, the cache must remove only the unused one.
func TestUnusedFoldersAreRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	old := time.Now().Add(-unusedLimit - time.Hour)
	c.checkFolder(t, f, "used", 1)
	c.checkFolder(t, f, "unused", 2)
	for _, key := range []string{"used", "unused"} {
		if err := os.Chtimes(filepath.Join(c.dir, key), old, old); err != nil {
			t.Fatal(err)
		}
	}

	c.checkFolder(t, f, "used", 2) // makes the folder young again
	c.checkFolder(t, f, "another", 3)
	if _, err := os.Stat(filepath.Join(c.dir, "unused")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the unused folder = %v, want ErrNotExist", err)
	}

	c.checkFolder(t, f, "used", 3)
}

// TestHeldLockFileIsNotRemoved makes two lock files older than unusedLimit, and holds one of the
// locks. When a folder is filled, the cache must remove only the other lock file. Without the held
// one, another process would create a new file, and lock that.
func TestHeldLockFileIsNotRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	old := time.Now().Add(-unusedLimit - time.Hour)
	held := filepath.Join(c.dir, "held"+lockSuffix)
	free := filepath.Join(c.dir, "free"+lockSuffix)
	for _, name := range []string{held, free} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}

		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}

	dir, err := c.findOrCreate("held", func(dir string) error {
		if _, err := os.Stat(held); err != nil {
			t.Errorf("the lock file of the folder being filled was removed: %v", err)
		}

		c.checkFolder(t, f, "another", 1)
		if _, err := os.Stat(held); err != nil {
			t.Errorf("another process's lock file was removed: %v", err)
		}

		return f.fill(dir)
	})
	if err != nil || dir != filepath.Join(c.dir, "held") {
		t.Errorf("findOrCreate = %q, %v", dir, err)
	}

	if _, err := os.Stat(free); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the free lock file = %v, want ErrNotExist", err)
	}
}

// countOpen returns how many file descriptors of this process refer to the file with this name.
func countOpen(t *testing.T, name string) (count int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}

	for _, link := range links {
		target, err := os.Readlink(link)
		if err == nil && target == name { // other descriptors may be closed meanwhile
			count++
		}
	}

	return count
}

// TestLockOfRemovedFileIsNotUsed removes a lock file while another goroutine waits for the lock. As
// other processes would then lock a new file of this name, the goroutine must do so, too.
func TestLockOfRemovedFileIsNotUsed(t *testing.T) {
	c := cache{t.TempDir()}
	name := filepath.Join(c.dir, "key"+lockSuffix)
	unlockRemoved, err := c.lock("key")
	if err != nil {
		t.Fatal(err)
	}

	second := make(chan func(), 1)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		unlock, err := c.lock("key")
		if err != nil {
			t.Error(err)
		}

		second <- unlock
	})
	for countOpen(t, name) < 2 { // until the goroutine has opened the file, too
		runtime.Gosched()
	}

	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}

	unlockRemoved()
	waiter.Wait()
	if unlock := <-second; unlock != nil {
		defer unlock()
	}

	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = f.Close() }()
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("locking the new file = %v, want EWOULDBLOCK", err)
	}
}

// TestKeysDependOnSourcesAndFlags checks that all combinations of sources and flags have different
// keys.
func TestKeysDependOnSourcesAndFlags(t *testing.T) {
	texts := []string{"int a;", "int b;"}
	flagLists := [][]string{nil, {"-O1"}, {"-O1 -g"}, {"-O1", "-g"}} // "-O1 -g" is one flag
	keys := map[string]bool{}
	for _, text := range texts {
		for _, flags := range flagLists {
			key, err := keyOf(flags, fstest.MapFS{"a.c": {Data: []byte(text)}})
			if err != nil {
				t.Fatal(err)
			}

			keys[key] = true
		}
	}

	if want := len(texts) * len(flagLists); len(keys) != want {
		t.Errorf("got %d different keys, want %d", len(keys), want)
	}
}
