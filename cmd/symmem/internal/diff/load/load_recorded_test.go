package load_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"symmem/cmd/symmem/internal/diff"
)

// readRecordedFiles returns the files that bench/gpu/snapshots.sh recorded with PyTorch 2.11 on 4
// H100 GPUs. The key names the planted difference and the kind of file: "extra_snapshot" has memory
// snapshots with an extra request on one rank, and "call_calls" has dumps with a different call.
// The files of a key are sorted by rank.
func readRecordedFiles(t *testing.T) map[string][][]byte {
	t.Helper()
	files := map[string][][]byte{}
	// The archive is sorted by names, such as "extra_snapshot_rank2.pickle".
	readArchive(t, "testdata/torch-2.11.tar.gz", func(name string, contents []byte) {
		key, _, _ := strings.Cut(name, "_rank")
		files[key] = append(files[key], contents)
	})
	return files
}

// readArchive visits the files of a .tar.gz archive.
func readArchive(t *testing.T, path string, visit func(name string, contents []byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}

	archive := tar.NewReader(unzipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}

		if err != nil {
			t.Fatal(err)
		}

		contents, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}

		visit(header.Name, contents)
	}
}

// Compare finds the difference that bench/gpu/torch/snapshots.py planted in each case.
func TestRecordedFiles(t *testing.T) {
	files := readRecordedFiles(t)
	for name, want := range map[string]string{ // results of summarize
		"agree_snapshot": "agree",
		"agree_calls":    "agree",
		"skew_calls":     "agree",
		"extra_snapshot": "request 81: extra on [2], explanations 1, explains the rest true",
		"size_snapshot":  "request 81: different size on [1], explanations 1, explains the rest true",
		"skew_snapshot":  "place 380: different place on [2]",
		"call_calls":     "request 5: different call on [1], explanations 1, explains the rest true",
	} {
		report := diff.Compare(read(t, files[name]...), diff.Options{})
		if got := summarize(report); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}

		checkReplays(t, name, report)
	}
}

// summarize describes the last difference in a report, or returns "agree".
func summarize(report *diff.Report) string {
	summary := "agree"
	for _, s := range report.Sequences {
		if d := s.RequestDifference; d != nil {
			explainsRest := strings.Contains(d.Explanation[0], "explains the rest")
			summary = fmt.Sprintf("request %d: %s on %v, explanations %d, explains the rest %v",
				d.RequestIndex, d.Kind, d.MinorityRanks, len(d.Explanation), explainsRest)
		}

		if d := s.PlacementDifference; d != nil {
			summary = fmt.Sprintf("place %d: %s on %v", d.RequestIndex, d.Kind, d.MinorityRanks)
		}
	}

	return summary
}

// checkReplays checks that each replay with PyTorch's placement rule yields the recorded places.
// For calls, Replay is nil.
func checkReplays(t *testing.T, name string, report *diff.Report) {
	t.Helper()
	const want = "explains the places of all"
	for _, s := range report.Sequences {
		if s.Replay != nil && !strings.Contains(s.Replay.PyTorchText, want) {
			t.Errorf("%s: replay %q; want PyTorch's rule to explain all places", name,
				s.Replay.PyTorchText)
		}
	}
}

func TestRecordedTimes(t *testing.T) {
	files := readRecordedFiles(t)
	earliest := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // before the recording
	for _, name := range []string{"agree_snapshot", "agree_calls"} {
		for _, rank := range read(t, files[name]...) {
			previous := earliest.UnixMicro()
			for _, e := range rank.Sequences[0].Events {
				if e.UnixMicro < previous {
					t.Fatalf("%s: time of event %d = %d, want at least %d", name, e.Number, e.UnixMicro,
						previous)
				}

				previous = e.UnixMicro
			}
		}
	}
}
