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

func checkOpenFails(t *testing.T, reason string) {
	t.Helper()
	s, err := Open(Config{Job: "job", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return
	}

	t.Errorf("Open succeeded, want an error: %s", reason)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Open fails if another user could have created, or could change, the folder of this user's jobs.
func TestOpenRefusesUnsafeFolder(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"a folder that others can enter": func(path string) error {
			return os.Mkdir(path, 0o755)
		},
		"a link": func(path string) error {
			return os.Symlink(t.TempDir(), path)
		},
		"a file": func(path string) error {
			return os.WriteFile(path, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			useFolder(t) // sets TMPDIR to a new folder, in which Root will be
			if err := prepare(Root()); err != nil {
				t.Fatal(err)
			}

			checkOpenFails(t, name+" is not safe")
		})
	}
}

// If the socket path exceeds the limit of the kernel, Open fails and leaves no folder for the job.
func TestLongSocketPathIsRefused(t *testing.T) {
	useFolder(t)
	longPath := filepath.Join(os.Getenv("TMPDIR"), strings.Repeat("x", maxSocketPath))
	if err := os.Mkdir(longPath, 0o700); err != nil {
		t.Fatal(err)
	}

	t.Setenv("TMPDIR", longPath)
	checkOpenFails(t, "the path of the socket is too long")
	if jobs, err := Jobs(Root()); err != nil || len(jobs) > 0 {
		t.Errorf("Jobs = %v, %v; want no job and no error", jobs, err)
	}
}

// leaveSocket creates a socket without a listener, like one of a killed rank.
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

	l.SetUnlinkOnClose(false) // Close leaves the socket in the folder
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Open removes the folders of jobs whose ranks have all ended. Read reports the ended ranks of
// running jobs.
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
	if err != nil || len(m.Ranks) != 2 {
		t.Fatalf("Read = %+v, %v; want two ranks", m, err)
	}

	if m.Ranks[0].Error != ErrorEnded {
		t.Errorf("rank 0 has error %q, want %q", m.Ranks[0].Error, ErrorEnded)
	}

	if m.Ranks[1].Error != "" {
		t.Errorf("rank 1 has error %q, want none", m.Ranks[1].Error)
	}
}
