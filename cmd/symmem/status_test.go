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

func runStatus(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runInProcess(t, append([]string{"status"}, args...)...)
}

// openWaitingRanks opens two ranks that serve their status on Unix sockets below a new TMPDIR.
// Rank 0 waits in Agree for rank 1. closeRanks makes rank 1 arrive, and waits for both to close.
func openWaitingRanks(t *testing.T) (closeRanks func()) {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "live") // socket paths must be short
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
	arrive := make(chan struct{}) // closed to let rank 1 call Agree
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

const groupWithEscape = "red \x1b[31m group" // would change the color of a terminal

// agree joins a group of both ranks and calls Agree in it. Rank 1 first waits for arrive.
func agree(ctx context.Context, rt *symmem.Runtime, arrive <-chan struct{}) error {
	g, err := rt.Join(ctx, groupWithEscape, []int{0, 1})
	if err != nil {
		return err
	}

	if rt.Rank() == 1 {
		<-arrive
	}

	const arbitraryStep = 1
	return g.Agree(ctx, "step", arbitraryStep)
}

func TestStatusShowsWaits(t *testing.T) {
	closeRanks := openWaitingRanks(t)
	defer closeRanks()
	text := statusOfWait(t)
	if !strings.Contains(text, "rank 1, process") {
		t.Errorf("status prints %q; want a line about rank 1", text)
	}

	if strings.Contains(text, "\x1b") { // from groupWithEscape
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

// statusOfWait repeats the command until it shows that rank 0 waits, and returns its output.
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

func TestStatusWithoutRanksFails(t *testing.T) {
	closeRanks := openWaitingRanks(t)
	closeRanks() // TMPDIR remains
	const absentFolder = "/nowhere"
	for _, args := range [][]string{{}, {absentFolder}, {"--json"}} {
		code, stdout, stderr := runStatus(t, args...)
		if code != exitIncomplete || !strings.Contains(stdout+stderr, "no rank serves its status") {
			t.Errorf("status %v = %d, %q, %q; want code %d", args, code, stdout, stderr, exitIncomplete)
		}
	}
}

func TestStatusReportsUnreadableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	code, _, stderr := runStatus(t, file)
	if code != exitIncomplete || !strings.Contains(stderr, "not a directory") {
		t.Errorf("status of a file = %d, %q; want code %d and the reason", code, stderr, exitIncomplete)
	}
}
