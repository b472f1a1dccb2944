package main

import (
	"bytes"
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

// runStatus runs the subcommand status in this process, and returns its exit code and output.
func runStatus(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	args = append([]string{"status"}, args...)
	noInput := strings.NewReader("")
	code = run(t.Context(), args, noInput, &outBuffer, &errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

// openWaitingRanks opens two ranks that serve their status in a new TMPDIR. Rank 0 waits for rank
// 1 in a group whose name contains an escape sequence. The function end lets rank 1 arrive and
// waits until both ranks have closed.
func openWaitingRanks(t *testing.T) (end func()) {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "live") // short, because socket paths are limited
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
	arrive := make(chan struct{})
	for _, rt := range runtimes {
		ranks.Go(func() {
			defer rt.Close()
			g, err := rt.Join(t.Context(), "red \x1b[31m group", []int{0, 1})
			if err != nil {
				t.Error(err)
				return
			}

			if rt.Rank() == 1 {
				<-arrive
			}

			const step = 1
			if err := g.Agree(t.Context(), "step", step); err != nil { // waits for the other rank
				t.Error(err)
			}
		})
	}

	return func() {
		close(arrive)
		ranks.Wait()
	}
}

// TestStatusShowsWaits checks that the status says that rank 0 waits for rank 1: as text for all
// jobs, as JSON, and for one folder of a job.
func TestStatusShowsWaits(t *testing.T) {
	end := openWaitingRanks(t)
	defer end()
	var text string
	begin := time.Now()
	for !strings.Contains(text, `for rank 1 in value "step"`) { // rank 0 may not wait yet
		code, stdout, stderr := runStatus(t)
		if code != exitOK {
			t.Fatalf("status = %d, %q, %q; want code %d", code, stdout, stderr, exitOK)
		}

		if time.Since(begin) > time.Minute {
			t.Fatalf("status prints %q for a minute; want rank 0 to wait for rank 1", stdout)
		}

		text = stdout
	}

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
	if waits := job.Ranks[0].Waits; len(waits) != 1 || !slices.Equal(waits[0].Ranks, []int{1}) {
		t.Fatalf("status --json prints %s; want rank 0 to wait only for rank 1", stdout)
	}

	code, stdout, _ = runStatus(t, job.Folder)
	if code != exitOK || !strings.Contains(stdout, "rank 0, process") {
		t.Errorf("status of the folder = %d, %q; want the job", code, stdout)
	}
}

// TestStatusWithoutRanksFails runs the command when all ranks have closed, and for a folder that
// does not exist.
func TestStatusWithoutRanksFails(t *testing.T) {
	end := openWaitingRanks(t)
	end() // both ranks have closed, but TMPDIR still names their folder
	for _, args := range [][]string{{}, {"/nowhere"}, {"--json"}} {
		code, stdout, stderr := runStatus(t, args...)
		if code != exitFailed || !strings.Contains(stdout+stderr, "no rank serves its status") {
			t.Errorf("status %v = %d, %q, %q; want code %d", args, code, stdout, stderr, exitFailed)
		}
	}
}

// TestStatusReportsUnreadableFolder checks that an argument that is no folder gets a specific
// error. The command must not say that the job has ended.
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
