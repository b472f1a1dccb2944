package live

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOpenRefusesUnsafeFolder opens a server when another user could have created or could change
// the folder of this user's jobs.
func TestOpenRefusesUnsafeFolder(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"a folder that others can enter": func(path string) error {
			return os.Mkdir(path, 0o755)
		},
		"a link": func(path string) error {
			return os.Symlink(t.TempDir(), path)
		},
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			useFolder(t)
			if err := prepare(Root()); err != nil {
				t.Fatal(err)
			}
			s, err := Open(Config{Job: "job", Log: slog.New(slog.DiscardHandler)})
			if err == nil {
				t.Errorf("Open = nil error, want an error about the folder (Close = %v)", s.Close())
			}
		})
	}
}

// TestLongSocketPathIsRefused uses a temporary folder whose path is longer than that of a Unix
// socket may be. Open must not leave a folder for the job.
func TestLongSocketPathIsRefused(t *testing.T) {
	useFolder(t)
	long := filepath.Join(os.Getenv("TMPDIR"), strings.Repeat("long-", 20))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	if s, err := Open(Config{Job: "job", Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Errorf("Open = nil error, want an error about the path (Close = %v)", s.Close())
	}
	if jobs, err := Jobs(Root()); err != nil || len(jobs) > 0 {
		t.Errorf("Jobs = %v, %v; want no job and no error", jobs, err)
	}
}

// leaveSocket creates a socket on which no process listens, as a killed rank leaves it.
func leaveSocket(t *testing.T, job string, rank int) {
	t.Helper()
	folder := filepath.Join(Root(), job)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketPath(folder, rank)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenRemovesSocketsOfEndedJobs opens a server next to a job that has ended, which Open must
// remove, and a job of which only rank 0 has ended, which it must keep.
func TestOpenRemovesSocketsOfEndedJobs(t *testing.T) {
	useFolder(t)
	openServer(t, "running", 1, SocketsOnly)
	leaveSocket(t, "running", 0)
	leaveSocket(t, "ended", 0)
	leaveSocket(t, "ended", 1)
	openServer(t, "new", 0, SocketsOnly)
	jobs, err := Jobs(Root())
	want := []string{filepath.Join(Root(), "new"), filepath.Join(Root(), "running")}
	if err != nil || !slices.Equal(jobs, want) {
		t.Errorf("Jobs = %v, %v; want %v", jobs, err, want)
	}
	m, err := Read(t.Context(), filepath.Join(Root(), "running"))
	if err != nil || len(m.Ranks) != 2 || m.Ranks[0].Error != ErrorEnded || m.Ranks[1].Error != "" {
		t.Errorf("Read = %+v, %v; want an error for rank 0 and none for rank 1", m, err)
	}
}
