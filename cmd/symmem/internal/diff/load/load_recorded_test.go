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
// H100 GPUs. Each key consists of a case and a kind of file, for example "extra_snapshot" or
// "call_calls". The value holds the contents of 4 files, one for each rank.
func readRecordedFiles(t *testing.T) map[string][][]byte {
	t.Helper()
	files := map[string][][]byte{}
	// The names of files are such as "extra_snapshot_rank2.pickle". The archive is sorted by name.
	readArchive(t, "testdata/torch-2.11.tar.gz", func(name string, contents []byte) {
		key, _, _ := strings.Cut(name, "_rank")
		files[key] = append(files[key], contents)
	})
	return files
}

// readArchive calls visit with the name and the contents of each file of a .tar.gz archive.
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

	for archive := tar.NewReader(unzipped); ; {
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

// TestRecordedFiles checks that Compare finds the difference that bench/gpu/torch/snapshots.py
// made in each case: "extra" has an extra request on rank 2, for example. The wanted text has the
// index and the kind of the difference, and the ranks that deviate. A different request also has
// one explanation, which must explain all later differences.
func TestRecordedFiles(t *testing.T) {
	files := readRecordedFiles(t)
	for name, want := range map[string]string{
		"agree_snapshot": "agree",
		"agree_calls":    "agree",
		"skew_calls":     "agree",
		"extra_snapshot": "request 81: extra on [2], explanations 1, explains the rest true",
		"size_snapshot":  "request 81: different size on [1], explanations 1, explains the rest true",
		"skew_snapshot":  "place 380: different place on [2]",
		"call_calls":     "request 5: different call on [1], explanations 1, explains the rest true",
	} {
		report := diff.Compare(read(t, files[name]...), diff.Options{})
		got := "agree"
		for _, s := range report.Sequences {
			if d := s.RequestDifference; d != nil {
				explainsRest := strings.Contains(d.Explanation[0], "explains the rest")
				got = fmt.Sprintf("request %d: %s on %v, explanations %d, explains the rest %v",
					d.RequestIndex, d.Kind, d.MinorityRanks, len(d.Explanation), explainsRest)
			}

			if d := s.PlacementDifference; d != nil {
				got = fmt.Sprintf("place %d: %s on %v", d.RequestIndex, d.Kind, d.MinorityRanks)
			}

			// A replay places the blocks again by PyTorch's rule. Sequences of calls have none.
			if s.Replay != nil && !strings.Contains(s.Replay.PyTorchText, "explains the places of all") {
				t.Errorf("%s: %s; want PyTorch's rule to explain all places", name, s.Replay.PyTorchText)
			}
		}

		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestRecordedTimes checks that every event has a time and that times do not decrease within a
// file.
func TestRecordedTimes(t *testing.T) {
	files := readRecordedFiles(t)
	earliest := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // shortly before the recording
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
