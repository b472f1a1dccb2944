package softgpu

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// cache is a folder of compiled libraries. Suppose that a process needs libraries for some sources
// and flags, and that 3f2a is the hash of these. This hash is called the key.
//
//   - If the folder "3f2a" exists and contains a file "complete", the process uses it.
//   - Otherwise, it locks the file "3f2a.lock", so that other processes do not compile the same.
//   - It compiles the libraries in a new folder, such as "unfinished-17". Afterwards, it writes the
//     file "complete", and renames the folder to "3f2a".
type cache struct{ dir string }

const (
	unfinishedPrefix = "unfinished-" // of the names of folders that are not renamed yet
	completeFile     = "complete"
	lockSuffix       = ".lock"
)

const (
	unfinishedLimit = time.Hour          // age at which unfinished folders are removed
	unusedLimit     = 7 * 24 * time.Hour // age at which other entries are removed
	compileTimeout  = 10 * time.Minute   // limit of the wait for another process that compiles
)

// userCache returns this user's cache, whose folder it creates. If the home directory is missing
// or read-only, the cache is in the folder for temporary files, where it must belong to this user.
func userCache() (cache, error) {
	if dir, err := os.UserCacheDir(); err == nil {
		c := cache{dir: filepath.Join(dir, "symmem-softgpu")}
		isCreated := os.MkdirAll(c.dir, 0o700) == nil // or existed before
		if isCreated && syscall.Access(c.dir, writable) == nil {
			return c, nil
		}
	}

	folderName := fmt.Sprintf("symmem-softgpu-%d", os.Getuid())
	c := cache{dir: filepath.Join(os.TempDir(), folderName)}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return cache{}, fmt.Errorf("creating the cache of the software GPU: %w", err)
	}

	info, err := os.Lstat(c.dir)
	if err != nil {
		return cache{}, fmt.Errorf("checking the cache of the software GPU: %w", err)
	}

	stat, hasStat := info.Sys().(*syscall.Stat_t)
	isOwn := hasStat && int(stat.Uid) == os.Getuid()
	isPrivate := info.Mode() == fs.ModeDir|0o700 // also excludes a symbolic link
	if !isOwn || !isPrivate {
		return cache{}, fmt.Errorf("%s is not a folder that only this user can write to", c.dir)
	}

	return c, nil
}

const writable = 2 // W_OK of access(2)

// findOrCreate returns the path of the folder for key. If there is none, it calls fill to write the
// contents to a new folder. Processes that need different keys do not wait for each other.
func (c cache) findOrCreate(key string, fill func(dir string) error) (string, error) {
	dir := filepath.Join(c.dir, key)
	if isComplete(dir) {
		return dir, touch(dir)
	}

	unlock, err := c.lock(key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isComplete(dir) { // another process has created it during the wait for the lock
		return dir, touch(dir)
	}

	c.removeOldEntries()
	if err := c.create(dir, fill); err != nil {
		return "", err
	}

	return dir, nil
}

// create creates the folder dir with the contents that fill writes. The caller must hold the lock.
func (c cache) create(dir string, fill func(dir string) error) error {
	// Each call needs a new folder: if a process is killed, its compiler may continue to write to the
	// old one.
	unfinished, err := os.MkdirTemp(c.dir, unfinishedPrefix)
	if err != nil {
		return err
	}

	err = fill(unfinished)
	if err == nil {
		err = finish(unfinished, dir)
	}

	if err != nil {
		removeErr := os.RemoveAll(unfinished)
		return errors.Join(err, removeErr)
	}

	return nil
}

// finish marks the unfinished folder as complete, and renames it to dir. A folder at dir, which is
// incomplete, is removed first.
func finish(unfinished, dir string) error {
	writeErr := os.WriteFile(filepath.Join(unfinished, completeFile), nil, 0o600)
	removeErr := os.RemoveAll(dir)
	if err := errors.Join(writeErr, removeErr); err != nil {
		return err
	}

	return os.Rename(unfinished, dir)
}

// isComplete reports whether a folder has all its contents.
func isComplete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, completeFile))
	return err == nil
}

// touch sets the modification time of a folder to now. A folder that is used often thus never
// reaches unusedLimit.
func touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// lock acquires the lock of a key. It waits up to compileTimeout for another process. The caller
// must call unlock. The lock also ends when this process ends.
func (c cache) lock(key string) (unlock func(), err error) {
	name := filepath.Join(c.dir, key+lockSuffix)
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}

		if err := lockInTime(f); err != nil {
			return nil, err
		}

		unlock = func() { _ = f.Close() } // also releases the lock
		if isAt(f, name) {
			return unlock, nil
		}

		unlock() // removeOldEntries has removed the file: lock a new one
	}
}

// lockInTime waits up to compileTimeout for the lock of a file. If it returns an error other than
// that of the timeout, it has closed the file.
func lockInTime(f *os.File) error {
	lockResult := make(chan error, 1)
	go func() { lockResult <- flock(f, syscall.LOCK_EX) }() // continues to wait after a timeout
	select {
	case err := <-lockResult:
		if err != nil {
			_ = f.Close()
		}

		return err
	case <-time.After(compileTimeout):
		return fmt.Errorf("waited %v for another process that is compiling the software GPU",
			compileTimeout)
	}
}

// flock calls flock(2). It tries again after a signal has interrupted it.
func flock(f *os.File, operation int) error {
	for {
		err := syscall.Flock(int(f.Fd()), operation)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// isAt reports whether name is still the name of an open file.
func isAt(f *os.File, name string) bool {
	opened, openedErr := f.Stat()
	named, namedErr := os.Stat(name)
	return openedErr == nil && namedErr == nil && os.SameFile(opened, named)
}

// removeOldEntries removes folders and lock files whose modification time is too long ago. It keeps
// the lock files of held locks. It ignores errors, because another process may remove the same
// entry.
func (c cache) removeOldEntries() {
	entries, _ := os.ReadDir(c.dir)
	for _, e := range entries {
		limit := unusedLimit
		if strings.HasPrefix(e.Name(), unfinishedPrefix) {
			limit = unfinishedLimit
		}

		info, err := e.Info()
		isOld := err == nil && time.Since(info.ModTime()) > limit
		name := filepath.Join(c.dir, e.Name())
		switch {
		case isOld && strings.HasSuffix(name, lockSuffix):
			removeUnlocked(name)
		case isOld:
			_ = os.RemoveAll(name)
		}
	}
}

// removeUnlocked removes a lock file unless a process holds the lock.
func removeUnlocked(name string) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return
	}

	defer func() { _ = f.Close() }()
	isUnlocked := flock(f, syscall.LOCK_EX|syscall.LOCK_NB) == nil
	if isUnlocked && isAt(f, name) {
		_ = os.Remove(name)
	}
}

// buildCode is the code that compiles the libraries. It is embedded so that a change of it also
// changes the keys.
//
//go:embed build.go
var buildCode embed.FS

// keyOf returns a hash of everything that determines compiled libraries: the versions of the
// compilers, the flags and the sources.
func keyOf(flags []string, sources ...fs.FS) (string, error) {
	hash := sha256.New()
	for _, compiler := range []string{"gcc", "g++"} {
		for _, option := range []string{"--version", "-dumpmachine"} {
			const defaultTempDir = ""
			output, err := runCompiler(defaultTempDir, compiler, compiler, []string{option})
			if err != nil {
				return "", err
			}

			fmt.Fprintf(hash, "%q\n", output)
		}
	}

	fmt.Fprintf(hash, "%q\n", flags)
	for _, source := range sources {
		if err := addFiles(hash, source); err != nil {
			return "", fmt.Errorf("reading the sources of the software GPU: %w", err)
		}
	}

	const keyLength = 32 // half of the hash suffices
	return hex.EncodeToString(hash.Sum(nil))[:keyLength], nil
}

// addFiles adds the names and the contents of all files in source to a hash.
func addFiles(hash io.Writer, source fs.FS) error {
	return fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		data, err := fs.ReadFile(source, name)
		if err != nil {
			return err
		}

		fmt.Fprintf(hash, "%q %q\n", name, data)
		return nil
	})
}
