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

// A cache stores compiled libraries in folders. For example, findOrCreate is called with the key
// "3f2a" and a function that fills a folder:
//
//   - If the cache has a complete folder "3f2a", findOrCreate returns its path.
//   - Otherwise, it locks the file "3f2a.lock", and lets the function fill a new folder, such as
//     "unfinished-17". Then it writes a file into the folder, the mark of a complete folder, and
//     renames the folder to "3f2a".
//
// When it fills a folder, it also removes what has not been used for a long time.

// filler fills folders as a compiler would, and counts them.
type filler struct{ filled atomic.Int32 }

// fill writes a file, the library.
func (f *filler) fill(dir string) error {
	f.filled.Add(1)
	return os.WriteFile(filepath.Join(dir, "library"), []byte("new"), 0o600)
}

// checkFolder gets the folder for a key, and lets f fill it if necessary. It checks that the folder
// contains only the library and the mark. Since the start of the test, f must have filled
// wantFilled folders.
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

// TestConcurrentCallsFillOnce calls findOrCreate with one key in several goroutines. Only one of
// them must fill the folder.
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

// TestKeysAreFilledAtTheSameTime fills the folder of the key inner while it fills that of the key
// outer. This would block if both used one lock.
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

// TestUnfinishedFoldersAreRemoved creates an unfinished folder, as if a compiler had been killed.
// The cache must keep it as long as a compiler may be filling it, and remove it when it is older
// than unfinishedLimit.
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

	makeOlderThan(t, unfinished, unfinishedLimit)
	c.checkFolder(t, f, "key", 2)
	if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the unfinished folder = %v, want ErrNotExist", err)
	}
}

// makeOlderThan changes the modification time of a file or folder.
func makeOlderThan(t *testing.T, path string, limit time.Duration) {
	t.Helper()
	old := time.Now().Add(-limit - time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
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
	hasOnlyLock := len(remaining) == 1 && remaining[0].Name() == "key"+lockSuffix
	if err != nil || !hasOnlyLock {
		t.Errorf("the cache contains %v (error %v); want only the lock", remaining, err)
	}

	c.checkFolder(t, f, "key", 2)
}

// TestUnusedFoldersAreRemoved makes two folders older than unusedLimit and uses one of them. When
// another folder is filled, the cache must remove only the unused one.
func TestUnusedFoldersAreRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	c.checkFolder(t, f, "used", 1)
	c.checkFolder(t, f, "unused", 2)
	makeOlderThan(t, filepath.Join(c.dir, "used"), unusedLimit)
	makeOlderThan(t, filepath.Join(c.dir, "unused"), unusedLimit)
	c.checkFolder(t, f, "used", 2) // makes the folder young again
	c.checkFolder(t, f, "another", 3)
	if _, err := os.Stat(filepath.Join(c.dir, "unused")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the unused folder = %v, want ErrNotExist", err)
	}

	c.checkFolder(t, f, "used", 3)
}

// TestHeldLockFileIsNotRemoved creates two old lock files, and holds the lock of one. When a folder
// is filled, the cache must remove only the other file. If the held one were removed, another
// process could create and lock a new file of this name.
func TestHeldLockFileIsNotRemoved(t *testing.T) {
	c, f := cache{t.TempDir()}, &filler{}
	held := c.createOldLock(t, "held")
	free := c.createOldLock(t, "free")
	// The lock of the key held is held while its folder is filled.
	dir, err := c.findOrCreate("held", func(dir string) error {
		if _, err := os.Stat(held); err != nil {
			t.Errorf("filling a folder removed its own lock file: %v", err)
		}

		c.checkFolder(t, f, "another", 1)
		if _, err := os.Stat(held); err != nil {
			t.Errorf("filling another folder removed the held lock file: %v", err)
		}

		return f.fill(dir)
	})
	wantDir := filepath.Join(c.dir, "held")
	if err != nil || dir != wantDir {
		t.Errorf("findOrCreate = %q, %v; want %q, nil", dir, err, wantDir)
	}

	if _, err := os.Stat(free); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the free lock file = %v, want ErrNotExist", err)
	}
}

// createOldLock creates the lock file of a key and makes it older than unusedLimit. It returns the
// path of the file.
func (c cache) createOldLock(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(c.dir, key+lockSuffix)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	makeOlderThan(t, path, unusedLimit)
	return path
}

// countOpen returns how many file descriptors of this process refer to the file with this path.
func countOpen(t *testing.T, path string) (count int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}

	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue // the descriptor has been closed meanwhile
		}

		if target == path {
			count++
		}
	}

	return count
}

// TestLockOfRemovedFileIsNotUsed removes a lock file while a goroutine waits for the lock. Other
// processes would then lock a new file of this name, so the goroutine must lock a new one, too.
func TestLockOfRemovedFileIsNotUsed(t *testing.T) {
	c := cache{t.TempDir()}
	name := filepath.Join(c.dir, "key"+lockSuffix)
	unlockRemoved, err := c.lock("key")
	if err != nil {
		t.Fatal(err)
	}

	unlocks := make(chan func(), 1) // the result of the goroutine's call of lock
	var waiter sync.WaitGroup
	waiter.Go(func() {
		unlock, err := c.lock("key")
		if err != nil {
			t.Error(err)
		}

		unlocks <- unlock
	})
	for countOpen(t, name) < 2 { // until the goroutine has opened the file, too
		runtime.Gosched()
	}

	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}

	unlockRemoved()
	waiter.Wait()
	if unlock := <-unlocks; unlock != nil {
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

// TestKeysDependOnSourcesAndFlags computes the keys for all combinations of two sources and four
// lists of compiler flags. All must be different.
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
