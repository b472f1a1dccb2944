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

// buildCode is the code that compiles the libraries.
//
//go:embed build.go kernel.go
var buildCode embed.FS

// cache is a folder of compiled libraries, with a subfolder for each set of sources and flags.
type cache struct{ dir string }

const (
	unfinishedPrefix = "unfinished-"      // names of incomplete folders
	completeFile     = "complete"         // exists in complete folders
	lockSuffix       = ".lock"            // follows the key in the name of its lock file
	unusedLimit      = 7 * 24 * time.Hour // time after the last use until a folder is removed
	unfinishedLimit  = time.Hour          // age at which incomplete folders are removed
	compileTimeout   = 10 * time.Minute   // limit of the wait for another process
)

// userCache returns this user's cache, whose folder it creates. If the home directory is missing
// or read-only, the cache is in the folder for temporary files, where it must belong to this user.
func userCache() (cache, error) {
	if dir, err := os.UserCacheDir(); err == nil {
		c := cache{filepath.Join(dir, "symmem-softgpu")}
		if os.MkdirAll(c.dir, 0o700) == nil && syscall.Access(c.dir, writable) == nil {
			return c, nil
		}
	}
	c := cache{filepath.Join(os.TempDir(), fmt.Sprintf("symmem-softgpu-%d", os.Getuid()))}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return cache{}, fmt.Errorf("creating the cache of the software GPU: %w", err)
	}
	info, err := os.Lstat(c.dir)
	if err != nil {
		return cache{}, fmt.Errorf("checking the cache of the software GPU: %w", err)
	}
	stat, hasStat := info.Sys().(*syscall.Stat_t)
	isOwn := hasStat && int(stat.Uid) == os.Getuid()
	if !isOwn || info.Mode() != fs.ModeDir|0o700 {
		return cache{}, fmt.Errorf("%s is not a folder that only this user can write to", c.dir)
	}
	return c, nil
}

const writable = 2 // W_OK of access(2)

// findOrCreate returns the subfolder for key. If it does not exist, findOrCreate calls create to
// write its contents to a folder. Processes that need different keys do not wait for each other.
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
		completePath := filepath.Join(unfinished, completeFile)
		err = errors.Join(os.WriteFile(completePath, nil, 0o600), os.RemoveAll(dir))
	}
	if err == nil {
		err = os.Rename(unfinished, dir)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(unfinished))
	}
	return dir, nil
}

// isComplete reports whether a folder has all its contents.
func isComplete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, completeFile))
	return err == nil
}

// touch marks a folder as used now.
func touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// lock acquires a lock for creating the folder of key. It waits up to compileTimeout for another
// process. The system releases the lock if this process is killed.
func (c cache) lock(key string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, key+lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	lockResult := make(chan error, 1)
	go func() { lockResult <- flock(f) }()
	select {
	case err := <-lockResult:
		return func() { _ = f.Close() }, err
	case <-time.After(compileTimeout):
		return nil, fmt.Errorf("waited %v for another process that is compiling the software GPU",
			compileTimeout)
	}
}

// flock waits for an exclusive lock of a file, even if signals interrupt it.
func flock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// removeOldEntries removes unused and incomplete folders. It ignores errors, because another
// process may remove the same folder.
func (c cache) removeOldEntries() {
	entries, _ := os.ReadDir(c.dir)
	for _, e := range entries {
		limit := unusedLimit
		if strings.HasPrefix(e.Name(), unfinishedPrefix) {
			limit = unfinishedLimit
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > limit {
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
			output, err := runCompiler("", compiler, compiler, []string{option})
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
			fmt.Fprintf(hash, "%q %q\n", name, data)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("reading the sources of the software GPU: %w", err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:32], nil
}
