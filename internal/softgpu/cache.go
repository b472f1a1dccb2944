package softgpu

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// buildCode is the code that compiles the libraries. It is embedded so that a change of it also
// changes the key of the cache.
//
//go:embed build.go kernel.go
var buildCode embed.FS

// cache is a folder of compiled libraries. It has a subfolder for each set of sources and flags.
// The name of the subfolder is the key, a hash of these.
type cache struct{ dir string }

const (
	unfinishedPrefix = "unfinished-"      // begins the names of incomplete subfolders
	completeFile     = "complete"         // name of a file that exists only in complete subfolders
	lockSuffix       = ".lock"            // follows the key in the name of its lock file
	unusedLimit      = 7 * 24 * time.Hour // time after the last use until a subfolder is removed
	unfinishedLimit  = time.Hour          // age at which incomplete subfolders are removed
	compileTimeout   = 10 * time.Minute   // limit of the wait for another process that compiles
)

// userCache returns this user's cache, whose folder it creates. If the home directory is missing
// or read-only, the cache is in the folder for temporary files, where it must belong to this user.
func userCache() (cache, error) {
	if dir, err := os.UserCacheDir(); err == nil {
		c := cache{dir: filepath.Join(dir, "symmem-softgpu")}
		isCreated := os.MkdirAll(c.dir, 0o700) == nil
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

// findOrCreate returns the path of the subfolder for key. If there is none, it calls create with a
// new folder, which create fills and which then becomes the subfolder. Processes that need
// different keys do not wait for each other.
func (c cache) findOrCreate(key string, create func(dir string) error) (string, error) {
	dir := filepath.Join(c.dir, key)
	if isComplete(dir) {
		return dir, touch(dir)
	}

	unlock, err := c.lock(key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isComplete(dir) { // another process has created it
		return dir, touch(dir)
	}

	c.removeOldEntries()
	// Each call writes to a new folder, because a killed process's compiler may still be running.
	unfinished, err := os.MkdirTemp(c.dir, unfinishedPrefix)
	if err == nil {
		err = create(unfinished)
	}

	if err == nil {
		err = finish(unfinished, dir)
	}

	if err != nil {
		removeErr := os.RemoveAll(unfinished)
		return "", errors.Join(err, removeErr)
	}

	return dir, nil
}

// finish marks the folder unfinished as complete and renames it to dir. It removes an incomplete
// folder at dir first.
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

// touch sets the time of the last use of a folder to now.
func touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// lock acquires a lock for creating the folder of key. It waits up to compileTimeout for another
// process. The lock ends when unlock closes its file, or when this process ends.
func (c cache) lock(key string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, key+lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}

	lockResult := make(chan error, 1)
	go func() { lockResult <- flock(f) }() // after a timeout, this goroutine goes on waiting
	select {
	case err := <-lockResult:
		unlock = func() { _ = f.Close() }
		if err != nil {
			unlock()
			return nil, err
		}

		return unlock, nil
	case <-time.After(compileTimeout):
		return nil, fmt.Errorf("waited %v for another process that is compiling the software GPU",
			compileTimeout)
	}
}

// flock waits for an exclusive lock of a file. It tries again after a signal has interrupted it.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// removeOldEntries removes subfolders that have not been used for a while, old incomplete ones, and
// old lock files. It ignores errors, because another process may remove the same entry.
func (c cache) removeOldEntries() {
	entries, _ := os.ReadDir(c.dir)
	for _, e := range entries {
		limit := unusedLimit
		if strings.HasPrefix(e.Name(), unfinishedPrefix) {
			limit = unfinishedLimit
		}

		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > limit {
			_ = os.RemoveAll(filepath.Join(c.dir, e.Name()))
		}
	}
}

// keyOf returns a hash of everything that determines compiled libraries: the versions of the
// compilers, the flags and the sources.
func keyOf(flags []string, sources ...fs.FS) (string, error) {
	hash := sha256.New()
	for _, compiler := range []string{"gcc", "g++"} {
		for _, option := range []string{"--version", "-dumpmachine"} {
			const defaultFolder = "" // for temporary files
			part := compiler         // named in an error
			output, err := runCompiler(defaultFolder, part, compiler, []string{option})
			if err != nil {
				return "", err
			}

			fmt.Fprintf(hash, "%q\n", output)
		}
	}

	fmt.Fprintf(hash, "%q\n", flags)
	for _, source := range sources {
		err := fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
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
		if err != nil {
			return "", fmt.Errorf("reading the sources of the software GPU: %w", err)
		}
	}

	const keyLength = 32 // half of the hash suffices
	return hex.EncodeToString(hash.Sum(nil))[:keyLength], nil
}
