package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

func runStatus(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	code = run(t.Context(), append([]string{"status"}, args...), strings.NewReader(""), &outBuffer,
		&errBuffer)
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
			if err := g.Agree(t.Context(), "step", 1); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		close(arrive)
		ranks.Wait()
	}
}

func TestStatusShowsWaits(t *testing.T) {
	end := openWaitingRanks(t)
	defer end()
	var text string
	begin := time.Now()
	for !strings.Contains(text, "for rank 1 in value \"step\"") {
		code, stdout, stderr := runStatus(t)
		if code != exitOK || time.Since(begin) > time.Minute {
			t.Fatalf("status = %d, %q, %q; want rank 0 to wait for rank 1", code, stdout, stderr)
		}
		text = stdout
	}
	if !strings.Contains(text, "rank 1, process") || strings.Contains(text, "\x1b") {
		t.Errorf("status prints %q; want both ranks, without escape sequences", text)
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
	if len(all.Jobs) != 1 || len(all.Jobs[0].Ranks) != 2 || len(all.Jobs[0].Ranks[0].Waits) != 1 ||
		all.Jobs[0].Ranks[0].Waits[0].Ranks[0] != 1 {
		t.Fatalf("status --json prints %s; want one job in which rank 0 waits for rank 1", stdout)
	}
	code, stdout, _ = runStatus(t, all.Jobs[0].Folder)
	if code != exitOK || !strings.Contains(stdout, "rank 0, process") {
		t.Errorf("status of the folder = %d, %q; want the job", code, stdout)
	}
}

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

// TestStatusReportsUnreadableFolder checks that status does not take a folder that it cannot list
// for the folder of a job that has ended.
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
