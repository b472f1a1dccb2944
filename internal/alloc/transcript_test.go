package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// transcript runs the commands of a file in testdata; go test -rewrite updates the expected output.
//
//	pool [pytorch] [creation] [address] [no-split] [capacity=N] [first=N] [granularity=N]
//	segment at=ADDRESS       map the next segment right below ADDRESS, and each later one below it
//	alloc NAME SIZE [stream=N]
//	free NAME, pin NAME, unpin NAME, use NAME stream=N, synced stream=N
//	trim [keep=N], reserve SIZE [stream=N], stats, map [width=N]
//	seize SIZE [stream=N] [except=N]     take memory from any stream except this one
type transcript struct {
	core   *Core
	blocks map[string]Block
	next   uint64
	out    strings.Builder
}

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &transcript{blocks: map[string]Block{}, next: 1 << 46}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			s.out.Reset()
			if err := s.run(d); err != nil {
				s.printf("error: %v", err)
			}

			if err := s.core.Verify(); err != nil {
				t.Fatal(err)
			}

			return s.out.String()
		})
	})
}

func (s *transcript) printf(format string, args ...any) {
	fmt.Fprintf(&s.out, format+"\n", args...)
}

func (s *transcript) run(d *datadriven.TestData) error {
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}

	stream := Stream(option(d, "stream"))
	switch d.Cmd {
	case "pool":
		return s.pool(d)
	case "segment":
		s.next = uint64(option(d, "at"))
	case "alloc":
		return s.alloc(name, parseBytes(d.CmdArgs[1].Key), stream)
	case "free":
		return s.moved(s.core.Free(s.blocks[name]))
	case "use":
		return s.core.Use(s.blocks[name].Handle, stream)
	case "synced":
		s.core.StreamCompleted(stream, s.core.Mark())
		s.reports()
	case "pin":
		_, err := s.core.Pin(s.blocks[name].Handle)
		return err
	case "unpin":
		_, state, err := s.core.Unpin(s.blocks[name].Handle)
		return s.moved(state, err)
	case "trim":
		for _, gone := range s.core.Trim(option(d, "keep")) {
			s.printf("trimmed segment %d, %s", gone.Ordinal, formatBytes(gone.Bytes))
		}
	case "reserve":
		return s.reserve(parseBytes(name), stream)
	case "seize":
		spared := Stream(option(d, "except"))
		_, err := s.core.Seize(parseBytes(name), stream, func(o Stream) bool {
			return !d.HasArg("except") || o != spared
		}, func(owner Stream) error {
			s.printf("wait for stream %d", owner)
			return nil
		})
		return err
	case "stats":
		s.stats()
	case "map":
		s.drawMap(int(cmp.Or(option(d, "width"), 64)))
	default:
		return errors.New("unknown command " + d.Cmd)
	}

	return nil
}

func (s *transcript) pool(d *datadriven.TestData) (err error) {
	config := Default()
	if d.HasArg("pytorch") {
		config = PyTorch()
	}

	if d.HasArg("creation") {
		config.Policy = CreationOrder
	}

	if d.HasArg("address") {
		config.Policy = AddressOrder
	}

	config.Capacity, config.First = option(d, "capacity"), option(d, "first")
	config.Granularity = option(d, "granularity")
	s.core, err = New(config)
	return err
}

func (s *transcript) alloc(name string, size int64, stream Stream) error {
	v, grow, err := s.core.Alloc(size, stream)
	s.reports()
	if err == nil && grow.Bytes > 0 {
		if err := s.grow(grow); err != nil {
			return err
		}

		v, _, err = s.core.Alloc(size, stream)
	}

	if err != nil {
		return err
	}

	s.blocks[name] = v
	s.printf("%s: segment %d, offset %s, size %s",
		name, v.Segment, formatBytes(v.Offset), formatBytes(v.Size))
	return nil
}

func (s *transcript) grow(grow Growth) error {
	s.next -= uint64(grow.Bytes)
	ordinal, err := s.core.AddSegment(grow, s.next)
	if err == nil {
		s.printf("grew by segment %d, %s", ordinal, formatBytes(grow.Bytes))
	}

	return err
}

func (s *transcript) reserve(size int64, stream Stream) error {
	grow, err := s.core.Reserve(size, stream)
	if err != nil || grow.Bytes == 0 {
		return err
	}

	return s.grow(grow)
}

func (s *transcript) moved(state State, err error) error {
	if err != nil {
		return err
	}

	s.printf("%s", state)
	s.reports()
	return nil
}

func (s *transcript) reports() {
	for _, m := range s.core.EventsToRecord() {
		s.printf("record event of deferral %d on stream %d", m.Deferral, m.Stream)
	}

	for _, w := range s.core.Waits() {
		s.printf("wait for deferral %d on stream %d", w.Deferral, w.Stream)
	}

	for _, r := range s.core.ReturnedBlocks() {
		s.printf("returned segment %d, offset %s", r.Segment, formatBytes(r.Offset))
	}
}

func (s *transcript) stats() {
	n := s.core.Stats()
	s.printf("segments %d, live %d, mapped %s (peak %s)",
		n.Segments, n.Live, formatBytes(n.Mapped), formatBytes(n.MappedPeak))
	s.printf("used %s (peak %s), requested %s, cached %s, largest free %s", formatBytes(n.Used),
		formatBytes(n.UsedPeak), formatBytes(n.Requested), formatBytes(n.Cached),
		formatBytes(n.LargestFree))
	s.printf("deferred %s, parked %s, pinned %s, fragmentation %.2f", formatBytes(n.Deferred),
		formatBytes(n.Parked), formatBytes(n.Pinned), n.Fragmentation())
}

// option returns the N of an argument NAME=N, or 0 if there is no such argument.
func option(d *datadriven.TestData, name string) int64 {
	for _, arg := range d.CmdArgs {
		if arg.Key == name && len(arg.Vals) == 1 {
			return parseBytes(arg.Vals[0])
		}
	}

	return 0
}

// parseBytes reads a number with an optional unit, such as 512, 4KiB or 0x1000.
func parseBytes(text string) int64 {
	scale := int64(1)
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, found := strings.CutSuffix(text, unit); found {
			text, scale = rest, kib<<(10*i)
		}
	}

	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		panic(err)
	}

	return n * scale
}

// drawMap draws one line of the given width for each segment:
//
//	seg 0 |AAAABB..c#DD....|  64 MiB, stream 1
//
// A cell shows the block that contains the cell's first byte: a live block as a capital letter that
// differs from its neighbors' letters, a deferred block as a lower-case letter, a parked block as
// '#' and a free block as '.'.
func (s *transcript) drawMap(width int) {
	cells := make([]byte, width)
	for g := range s.core.Segments() {
		s.paint(cells, g)
		s.printf("seg %d |%s|  %s, stream %d", g.Ordinal, cells, formatBytes(g.Bytes), g.Stream)
	}
}

func (s *transcript) paint(cells []byte, g Segment) {
	width, cell, letter := int64(len(cells)), int64(0), byte(0)
	for v := range s.core.Blocks(g.Ordinal) {
		mark := byte('.')
		switch v.State {
		case Live:
			mark = 'A' + letter
		case Deferred:
			mark = 'a' + letter
		case Parked:
			mark = '#'
		case noState, Free:
		}

		if v.State != Free {
			letter = (letter + 1) % 26
		}

		for ; cell < width && cellStart(cell, width, g.Bytes) < v.Offset+v.Size; cell++ {
			cells[cell] = mark
		}
	}
}

// cellStart returns the offset at which a cell begins. The order of operations avoids overflow and
// gives an exact result if width divides bytes.
func cellStart(cell, width, bytes int64) int64 {
	return bytes/width*cell + bytes%width*cell/width
}

// formatBytes formats a size in the largest unit that divides it.
func formatBytes(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n != 0 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}

	return fmt.Sprintf("%d %s", n, units[i])
}
