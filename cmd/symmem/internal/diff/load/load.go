// Package load reads the files that ranks have written: traces of symmem, and memory snapshots and
// Flight Recorder dumps of PyTorch. It recognizes their formats by their contents.
package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"symmem/cmd/symmem/internal/diff/flight"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
	"symmem/cmd/symmem/internal/diff/snapshot"
	"symmem/cmd/symmem/internal/diff/symmemtrace"
	"symmem/trace"
)

// Options configures Files.
type Options struct {
	// Device is the device whose events are read from snapshots. If it is negative, each snapshot
	// must have events of one device only.
	Device int
	// Progress, if set, is called with the number of bytes read and the total. It must be safe for
	// concurrent use.
	Progress func(done, total int64)
}

// Source identifies a rank's file.
type Source struct {
	Path string
	Rank int // -1 if neither the file's name nor the caller states it
	// HasGivenRank is set if the caller stated the rank, even if the file states another one.
	HasGivenRank bool
	// World counts the worlds (sets of ranks that communicate) of the process, from 1.
	World int
	size  int64
}

var (
	numberOfRank = regexp.MustCompile(`(?i)rank[^0-9a-z]*(\d+)`)
	lastNumber   = regexp.MustCompile(`(\d+)\D*$`)
)

// laterWorld matches the name of a trace of world 2 or above.
var laterWorld = regexp.MustCompile(`^world(\d+)-rank\d+\.trace$`)

func worldOf(path string) int {
	if digits := laterWorld.FindStringSubmatch(filepath.Base(path)); digits != nil {
		if n, err := strconv.Atoi(digits[1]); err == nil {
			return n
		}
	}

	return 1
}

// Find lists the files in paths. In directories, it omits replaced traces (.old) and reports
// (.html). ranks has the ranks of some files by their clean paths. Of the others, the rank is in
// the file, or else the number after "rank" in the file's name, or else the last number there.
func Find(paths []string, ranks map[string]int) ([]Source, error) {
	var all []Source
	unused := maps.Clone(ranks)
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("finding files: %w", err)
		}

		names := []string{path}
		if info.IsDir() {
			if names, err = filesIn(path); err != nil {
				return nil, err
			}
		}

		for _, name := range names {
			s, err := newSource(name, ranks)
			if err != nil {
				return nil, err
			}

			all = append(all, s)
			delete(unused, filepath.Clean(name))
		}
	}

	if len(unused) > 0 {
		return nil, fmt.Errorf("a rank was given for %s, which is not among the files",
			slices.Sorted(maps.Keys(unused))[0])
	}

	if len(all) == 0 {
		return nil, fmt.Errorf("%s contains no files", strings.Join(paths, ", "))
	}

	return all, nil
}

func filesIn(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("finding files: %w", err)
	}

	var names []string
	for _, e := range entries {
		if isFile(folder, e) && !strings.HasPrefix(e.Name(), ".") &&
			!slices.Contains([]string{".old", ".html"}, filepath.Ext(e.Name())) {
			names = append(names, filepath.Join(folder, e.Name()))
		}
	}

	return names, nil
}

// isFile reports whether a directory entry is a regular file, or a link to one or to nothing.
func isFile(folder string, e os.DirEntry) bool {
	if e.Type()&os.ModeSymlink == 0 {
		return e.Type().IsRegular()
	}

	info, err := os.Stat(filepath.Join(folder, e.Name()))
	return err != nil || info.Mode().IsRegular()
}

func newSource(path string, ranks map[string]int) (Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Source{}, fmt.Errorf("finding files: %w", err)
	}

	s := Source{Path: path, World: worldOf(path), size: info.Size()}
	if !info.Mode().IsRegular() {
		return s, fmt.Errorf("%s is not a regular file", path)
	}

	if n, ok := ranks[filepath.Clean(path)]; ok {
		s.Rank, s.HasGivenRank = n, true
		return s, nil
	}

	base := filepath.Base(path)
	base = strings.TrimSuffix(base, filepath.Ext(base)) + numericExtension(base)
	s.Rank = -1
	digits := numberOfRank.FindStringSubmatch(base)
	if digits == nil {
		digits = lastNumber.FindStringSubmatch(base)
	}

	if digits != nil {
		if n, err := strconv.Atoi(digits[1]); err == nil {
			s.Rank = n
		}
	}

	return s, nil
}

// numericExtension returns the extension if it is a number, as in "trace.3".
func numericExtension(base string) string {
	extension := filepath.Ext(base)
	if _, err := strconv.Atoi(strings.TrimPrefix(extension, ".")); err != nil {
		return ""
	}

	return extension
}

// Files reads all sources. It returns their histories, sorted by format and rank.
func Files(sources []Source, o Options) ([]*history.Rank, error) {
	limitMemory()
	var done atomic.Int64
	total := int64(0)
	for _, s := range sources {
		total += s.size
	}

	report := func(n int) {
		if read := done.Add(int64(n)); o.Progress != nil {
			o.Progress(read, total)
		}
	}
	ranks := make([]*history.Rank, len(sources))
	errs := make([]error, len(sources))
	var wait sync.WaitGroup
	slots := make(chan struct{}, max(runtime.GOMAXPROCS(0), 1))
	for i, s := range sources {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			ranks[i], errs[i] = readFile(s, o.Device, report)
		})
	}

	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	return ranks, sortRanks(ranks)
}

const memoryLimit = 5 << 29 // in bytes

// limitMemory makes the garbage collector run more often above memoryLimit, unless GOMEMLIMIT is
// set. Otherwise, garbage could double the memory that a large file needs.
func limitMemory() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// sortRanks sorts histories by format and rank. It returns an error if two with the same format
// have the same rank, or worlds of different sizes.
func sortRanks(ranks []*history.Rank) error {
	slices.SortStableFunc(ranks, func(a, b *history.Rank) int {
		if a.Format != b.Format {
			return strings.Compare(a.Format, b.Format)
		}

		return a.Number - b.Number
	})
	for i := 1; i < len(ranks); i++ {
		a, b := ranks[i-1], ranks[i]
		if a.Format == b.Format && a.RankCount != b.RankCount {
			return fmt.Errorf("%s is of a world of %d ranks, and %s of one of %d: pass the files of one "+
				"world of one run", a.File, a.RankCount, b.File, b.RankCount)
		}

		if a.Format == b.Format && a.Number == b.Number {
			return fmt.Errorf("%s and %s are both files of rank %d: pass the files of one run, or "+
				"add --rank FILE=N", a.File, b.File, a.Number)
		}
	}

	return nil
}

// counter reports the number of bytes of each read.
type counter struct {
	io.Reader
	report func(int)
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.report(n)
	return n, err
}

func readFile(s Source, device int, report func(int)) (*history.Rank, error) {
	f, err := os.Open(s.Path)
	if err != nil {
		return nil, fmt.Errorf("reading a rank's file: %w", err)
	}
	defer f.Close()
	rank, err := Read(&counter{f, report}, device)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.Path, err)
	}

	rank.File = s.Path
	if rank.World = s.World; s.World > 1 {
		rank.Format += fmt.Sprintf(", world %d", s.World)
	}

	if rank.Number >= 0 && !s.HasGivenRank {
		return rank, nil // the file states its rank
	}

	if s.Rank < 0 {
		return nil, fmt.Errorf("the name of %s contains no rank: add --rank %s=N", s.Path, s.Path)
	}

	rank.Number = s.Rank
	return rank, nil
}

// Read reads a file of any known format.
func Read(r io.Reader, device int) (*history.Rank, error) {
	buffered := bufio.NewReader(r)
	if begin, _ := buffered.Peek(8); trace.IsTrace(begin) {
		return symmemtrace.Read(buffered)
	}

	return readPyTorch(buffered, device)
}

func readPyTorch(r io.Reader, device int) (*history.Rank, error) {
	rank := &history.Rank{Number: -1}
	stacks := snapshot.NewStacks(rank)
	memory, calls := snapshot.NewReader(rank, stacks), flight.NewReader(rank, stacks)
	streams := append(slices.Clone(snapshot.StreamedLists), flight.StreamedLists...)
	element := func(d *plain.Document, key, list int, v plain.Value) error {
		if key == len(snapshot.StreamedLists) {
			return calls.AddEntry(d, v)
		}

		return memory.AddElement(d, key, list, v)
	}
	d, top, err := plain.Decode(r, plain.Options{StreamedLists: streams, OnElement: element})
	if err != nil {
		return nil, err
	}

	isCalls := !d.Get(top, d.StringValue("entries")).IsNone()
	isMemory := !d.Get(top, d.StringValue("segments")).IsNone() || d.IsList(top)
	switch {
	case isCalls && !memory.HasElements():
		calls.Finish(d, top)
		return rank, nil
	case isMemory && !calls.HasEntries():
		return rank, memory.Finish(d, top, device)
	}

	return nil, fmt.Errorf("%w: it is not a trace of symmem, a memory snapshot of PyTorch or a "+
		"Flight Recorder dump", plain.ErrFormat)
}
