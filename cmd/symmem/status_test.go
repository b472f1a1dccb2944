package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// These tests cover symmem status. Ranks on this machine serve their status on Unix sockets in a
// folder below TMPDIR, one folder for each job. The command finds the folders, and prints for which
// ranks each rank waits. In the tests, rank 0 calls Agree, which waits until rank 1 calls it.

// runStatus runs symmem status in this process, and returns its exit code and output.
func runStatus(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runInProcess(t, append([]string{"status"}, args...)...)
}

// openWaitingRanks opens a job of two ranks in a new TMPDIR, in which rank 0 waits for rank 1. The
// function end ends the wait, and returns when both ranks have closed.
func openWaitingRanks(t *testing.T) (end func()) {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "live") // short, because the paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(folder) })
	t.Setenv("TMPDIR", folder)
	runtimes, err := symmem.OpenLocal(t.Context(), 2, symmem.Options{Backend: "host", HTTP: "unix"})
	if err != nil {
		t.Fatal(err)
	}

	var ranks sync.WaitGroup
	arrive := make(chan struct{}) // closed when rank 1 may call Agree
	for _, rt := range runtimes {
		ranks.Go(func() {
			defer rt.Close()
			if err := agree(t.Context(), rt, arrive); err != nil {
				t.Error(err)
			}
		})
	}

	return func() {
		close(arrive)
		ranks.Wait()
	}
}

// agree joins a group of both ranks, and calls Agree in it. Rank 1 first waits for arrive. The name
// of the group contains an escape sequence, which a terminal would take for a command.
func agree(ctx context.Context, rt *symmem.Runtime, arrive <-chan struct{}) error {
	g, err := rt.Join(ctx, "red \x1b[31m group", []int{0, 1})
	if err != nil {
		return err
	}

	if rt.Rank() == 1 {
		<-arrive
	}

	const step = 1
	return g.Agree(ctx, "step", step)
}

// TestStatusShowsWaits checks that the command prints that rank 0 waits for rank 1: as text for all
// jobs, as JSON, and for the folder of a job.
func TestStatusShowsWaits(t *testing.T) {
	end := openWaitingRanks(t)
	defer end()
	text := statusOfWait(t)
	if !strings.Contains(text, "rank 1, process") {
		t.Errorf("status prints %q; want a line about rank 1", text)
	}

	if strings.Contains(text, "\x1b") {
		t.Errorf("status prints %q; want no escape sequences", text)
	}

	code, stdout, _ := runStatus(t, "--json")
	var all struct {
		Jobs []struct {
			Folder string
			Ranks  []struct{ Waits []struct{ Ranks []int } }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != exitOK {
		t.Fatalf("status --json = %d, %q: %v", code, stdout, err)
	}

	if len(all.Jobs) != 1 || len(all.Jobs[0].Ranks) != 2 {
		t.Fatalf("status --json prints %s; want one job of two ranks", stdout)
	}

	job := all.Jobs[0]
	waits := job.Ranks[0].Waits
	if len(waits) != 1 || !slices.Equal(waits[0].Ranks, []int{1}) {
		t.Fatalf("status --json prints %s; want rank 0 to wait only for rank 1", stdout)
	}

	code, stdout, _ = runStatus(t, job.Folder)
	if code != exitOK || !strings.Contains(stdout, "rank 0, process") {
		t.Errorf("status of the folder = %d, %q; want the job", code, stdout)
	}
}

// statusOfWait repeats the command until rank 0 waits, and returns the text that it then prints.
func statusOfWait(t *testing.T) string {
	t.Helper()
	begin := time.Now()
	for {
		code, stdout, stderr := runStatus(t)
		if code != exitOK {
			t.Fatalf("status = %d, %q, %q; want code %d", code, stdout, stderr, exitOK)
		}

		if time.Since(begin) > time.Minute {
			t.Fatalf("status prints %q for a minute; want rank 0 to wait for rank 1", stdout)
		}

		if strings.Contains(stdout, `for rank 1 in value "step"`) {
			return stdout
		}
	}
}

// TestStatusWithoutRanksFails checks that the command fails when all ranks have closed, and for a
// folder that does not exist.
func TestStatusWithoutRanksFails(t *testing.T) {
	end := openWaitingRanks(t)
	end() // TMPDIR remains the folder in which the ranks served their status
	for _, args := range [][]string{{}, {"/nowhere"}, {"--json"}} {
		code, stdout, stderr := runStatus(t, args...)
		if code != exitFailed || !strings.Contains(stdout+stderr, "no rank serves its status") {
			t.Errorf("status %v = %d, %q, %q; want code %d", args, code, stdout, stderr, exitFailed)
		}
	}
}

// TestStatusReportsUnreadableFolder checks that the command fails with a specific error if its
// argument is a file.
func TestStatusReportsUnreadableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	code, _, stderr := runStatus(t, file)
	if code != exitFailed || !strings.Contains(stderr, "not a directory") {
		t.Errorf("status of a file = %d, %q; want code %d and the reason", code, stderr, exitFailed)
	}
}
