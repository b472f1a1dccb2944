package live

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"symmem/internal/sys"
)

// The ranks of a job on one machine find each other by a folder, which has a name that is unique to
// the job. Suppose that this name is run5, that rank 3 runs on this machine, and that the user has
// the number 1000:
//
//	/tmp/symmem-1000                    the root: it contains the folders of this user's jobs
//	/tmp/symmem-1000/run5               the folder of the job
//	/tmp/symmem-1000/run5/rank3.sock    the socket at which rank 3 serves its state
//	/tmp/symmem-1000/run5/token         the token of the job
//
// If a rank is killed, its socket stays, but refuses connections. Sweep removes the folders of jobs
// all of whose ranks have exited.

// Root returns the folder that contains the folders of this user's jobs on this machine.
func Root() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("symmem-%d", os.Geteuid()))
}

// Jobs lists the folders of the jobs in root, which must be a result of Root. It returns no error
// if root does not exist, because no job has run yet.
func Jobs(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, fmt.Errorf("listing jobs: %w", err)
	}

	var jobs []string
	for _, e := range entries {
		if e.IsDir() {
			jobs = append(jobs, filepath.Join(root, e.Name()))
		}
	}

	return jobs, nil
}

// createFolder creates a folder that no other user can enter. If the folder exists, createFolder
// checks that this is so: another user could have created it, or could replace sockets in it.
func createFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	info, err := os.Lstat(path) // does not follow a link of another user
	if err != nil {
		return err
	}

	stat, hasStat := info.Sys().(*syscall.Stat_t)
	isOwn := hasStat && int(stat.Uid) == os.Geteuid()
	isPrivate := info.Mode().Perm()&0o077 == 0
	if !info.IsDir() || !isOwn || !isPrivate {
		return fmt.Errorf("%s must be a folder that no other user can enter: set TMPDIR to "+
			"another folder", path)
	}

	return nil
}

// Names of the files in the folder of a job.
const (
	socketPrefix, socketSuffix = "rank", ".sock"
	tokenFile                  = "token"
)

// maxSocketPath is the kernel's limit for the length of a socket's path in bytes.
const maxSocketPath = 107

// socketPath returns the path of a rank's socket in the folder of a job.
func socketPath(folder string, rank int) string {
	return filepath.Join(folder, socketPrefix+strconv.Itoa(rank)+socketSuffix)
}

// Ranks lists the ranks with a socket in the folder of a job, in ascending order. This includes
// killed ranks.
func Ranks(folder string) ([]int, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("listing the ranks of a job: %w", err)
	}

	var ranks []int
	for _, e := range entries {
		name, hasSuffix := strings.CutSuffix(e.Name(), socketSuffix)
		number, hasPrefix := strings.CutPrefix(name, socketPrefix)
		if !hasSuffix || !hasPrefix {
			continue
		}

		rank, parseErr := strconv.Atoi(number)
		if parseErr == nil && rank >= 0 {
			ranks = append(ranks, rank)
		}
	}

	slices.Sort(ranks)
	return ranks, nil
}

// listenUnix listens on the socket of a rank. It creates the socket with a temporary name and then
// renames it. So other processes do not find the socket before it accepts connections. The socket
// replaces that of an earlier process.
func listenUnix(folder string, rank int) (*net.UnixListener, error) {
	path := socketPath(folder, rank)
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of the socket %s has %d bytes, but the kernel allows %d: set "+
			"TMPDIR to a shorter folder", path, len(path), maxSocketPath)
	}

	temporaryPath := filepath.Join(folder, fmt.Sprintf(".%d.%d", rank, os.Getpid()))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: temporaryPath})
	if err != nil {
		return nil, err
	}

	sys.CloseInForks(l)       // so that the socket refuses connections after this process
	l.SetUnlinkOnClose(false) // otherwise, Close would remove a file with the temporary name
	if err := os.Rename(temporaryPath, path); err != nil {
		removeErr := os.Remove(temporaryPath)
		closeErr := l.Close()
		return nil, errors.Join(err, removeErr, closeErr)
	}

	return l, nil
}

// Sweep removes the folders of this user's jobs all of whose ranks have exited.
func Sweep() {
	jobs, _ := Jobs(Root()) // after an error, there is nothing to remove
	for _, job := range jobs {
		ranks, err := Ranks(job)
		if err != nil || len(ranks) == 0 {
			continue // the job may create its sockets soon
		}

		isAlive := func(rank int) bool { return !isSocketDead(job, rank) }
		if slices.ContainsFunc(ranks, isAlive) {
			continue
		}

		for _, rank := range ranks {
			_ = os.Remove(socketPath(job, rank))
		}

		removeFolderIfUnused(job)
	}
}

// isSocketDead reports whether the socket of a rank refuses connections, because its process has
// exited. It returns false for other errors, for example if the socket has been removed.
func isSocketDead(folder string, rank int) bool {
	c, err := net.Dial("unix", socketPath(folder, rank))
	if err == nil {
		_ = c.Close()
	}

	return errors.Is(err, syscall.ECONNREFUSED)
}

// removeFolderIfUnused removes the folder of a job in which no rank has a socket.
func removeFolderIfUnused(folder string) {
	if ranks, err := Ranks(folder); err != nil || len(ranks) > 0 {
		return
	}

	_ = os.Remove(filepath.Join(folder, tokenFile)) // fails if the job has no token
	_ = os.Remove(folder)                           // fails if a rank has just created its socket
}
