package alloc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// transcript plays the commands of a file in testdata; go test -rewrite writes the answers.
//
//	pool [pytorch] [creation] [address] [no-split] [capacity=N] [first=N] [granularity=N]
//	segment at=ADDRESS       where the next segments go: each right below the one before
//	alloc NAME SIZE [stream=N]
//	free NAME, pin NAME, unpin NAME, use NAME stream=N, synced stream=N
//	trim [keep=N], reserve SIZE [stream=N], stats, map [width=N]
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
				s.say("error: %v", err)
			}
			if err := s.core.Verify(); err != nil {
				t.Fatal(err)
			}
			return s.out.String()
		})
	})
}

func (s *transcript) say(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

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
		return s.core.Use(s.blocks[name], stream)
	case "synced":
		s.core.Synced(stream)
		s.reports()
	case "pin":
		return s.core.Pin(s.blocks[name])
	case "unpin":
		return s.moved(s.core.Unpin(s.blocks[name]))
	case "trim":
		for _, gone := range s.core.Trim(option(d, "keep")) {
			s.say("trimmed segment %d, %s", gone.Ordinal, formatBytes(gone.Bytes))
		}
	case "reserve":
		return s.reserve(parseBytes(name), stream)
	case "stats":
		s.stats()
	case "map":
		return s.core.Map(&s.out, int(option(d, "width")))
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
		config.Policy = Creation
	}
	if d.HasArg("address") {
		config.Policy = Address
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
	s.say("%s: segment %d, offset %s, size %s",
		name, v.Segment, formatBytes(v.Offset), formatBytes(v.Size))
	return nil
}

func (s *transcript) grow(grow Growth) error {
	s.next -= uint64(grow.Bytes)
	ordinal, err := s.core.AddSegment(grow, s.next)
	if err == nil {
		s.say("grew by segment %d, %s", ordinal, formatBytes(grow.Bytes))
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

// moved tells where a block stands after Free or Unpin.
func (s *transcript) moved(state State, err error) error {
	if err != nil {
		return err
	}
	s.say("%s", state)
	s.reports()
	return nil
}

func (s *transcript) reports() {
	for _, m := range s.core.EventsToRecord() {
		s.say("record event of ticket %d on stream %d", m.Ticket, m.Stream)
	}
	for _, w := range s.core.Waits() {
		s.say("wait for ticket %d on stream %d", w.Ticket, w.Stream)
	}
	for _, r := range s.core.Returned() {
		s.say("returned segment %d, offset %s, ticket %d",
			r.Block.Segment, formatBytes(r.Block.Offset), r.Ticket)
	}
}

func (s *transcript) stats() {
	n := s.core.Stats()
	s.say("segments %d, live %d, mapped %s (peak %s)",
		n.Segments, n.Live, formatBytes(n.Mapped), formatBytes(n.MappedPeak))
	s.say("used %s (peak %s), requested %s, cached %s, largest free %s", formatBytes(n.Used),
		formatBytes(n.UsedPeak), formatBytes(n.Requested), formatBytes(n.Cached),
		formatBytes(n.LargestFree))
	s.say("deferred %s, parked %s, pinned %s, fragmentation %.2f", formatBytes(n.Deferred),
		formatBytes(n.Parked), formatBytes(n.Pinned), n.Fragmentation())
}

// option returns the number of an argument NAME=N, or 0.
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
