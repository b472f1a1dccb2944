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

// Root returns the folder of this user's jobs on this machine. For job run5 of user 1000, it
// contains:
//
//	/tmp/symmem-1000/run5/rank3.sock    socket at which rank 3 serves its state
//	/tmp/symmem-1000/run5/token         token for HTTP requests over TCP
func Root() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("symmem-%d", os.Geteuid()))
}

// Jobs lists the folders of the jobs in root, or none if root does not exist. See Root.
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

// createFolder ensures that a folder exists and that only this user can enter it.
func createFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	info, err := os.Lstat(path) // does not follow links, which another user could have created
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

// File names in the folder of a job.
const (
	socketPrefix, socketSuffix = "rank", ".sock"
	tokenFile                  = "token"
)

const maxSocketPath = 107 // bytes, a limit of Linux

func socketPath(folder string, rank int) string {
	return filepath.Join(folder, socketPrefix+strconv.Itoa(rank)+socketSuffix)
}

// Ranks lists the ranks with a socket in the folder of a job, in ascending order. A killed rank
// leaves its socket.
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

// listenUnix creates the socket of a rank. The socket accepts connections before it gets its final
// name and replaces that of an earlier process.
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

	sys.CloseInForks(l)       // a forked process would keep the socket open
	l.SetUnlinkOnClose(false) // Close would unlink temporaryPath
	if err := os.Rename(temporaryPath, path); err != nil {
		removeErr := os.Remove(temporaryPath)
		closeErr := l.Close()
		return nil, errors.Join(err, removeErr, closeErr)
	}

	return l, nil
}

// Sweep removes the folder of each of this user's jobs whose ranks have all exited.
func Sweep() {
	jobs, _ := Jobs(Root()) // nil after an error
	for _, job := range jobs {
		ranks, _ := Ranks(job) // none after an error
		if len(ranks) == 0 {   // the ranks of a new job create their sockets later
			continue
		}

		isInUse := slices.ContainsFunc(ranks, func(rank int) bool { return mayBeAlive(job, rank) })
		if isInUse {
			continue
		}

		for _, rank := range ranks {
			_ = os.Remove(socketPath(job, rank))
		}

		removeFolderIfUnused(job)
	}
}

// mayBeAlive returns false if a rank's socket refuses connections, because its process has exited.
func mayBeAlive(folder string, rank int) bool {
	c, err := net.Dial("unix", socketPath(folder, rank))
	if err == nil {
		_ = c.Close()
	}

	return !errors.Is(err, syscall.ECONNREFUSED)
}

func removeFolderIfUnused(folder string) {
	if ranks, err := Ranks(folder); err != nil || len(ranks) > 0 {
		return
	}

	_ = os.Remove(filepath.Join(folder, tokenFile)) // fails if the job has no token
	_ = os.Remove(folder)                           // fails if a rank has just created its socket
}
