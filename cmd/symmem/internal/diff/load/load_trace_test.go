package load_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"symmem/event"
	"symmem/trace"
)

// smallTrace returns a trace with events of a pool and of a group.
func smallTrace(tb testing.TB) []byte {
	tb.Helper()
	folder := tb.TempDir()
	w, err := trace.Create(folder, trace.Options{Rank: 1, Size: 2, Records: 1})
	if err != nil {
		tb.Fatal(err)
	}

	s := w.NewSource()
	for n, kind := range []event.Kind{
		event.KindSegment, event.KindAlloc, event.KindPark, event.KindReturn, event.KindAlloc,
		event.KindFree, event.KindNote, event.KindTrim, event.KindRegister, event.KindDeregister,
	} {
		s.Record(&event.Event{
			Kind: kind, Number: uint64(n), Group: "world", Size: 512, Requested: 500, Site: "train.go:12",
		})
	}

	s.RecordCollective("world", 0, &event.Call{Operation: "Barrier"}, 0, "")
	s.RecordCollective("world", 1, &event.Call{Operation: "Send"}, 0, "")
	for _, kind := range []event.Kind{event.KindInteger, event.KindStep, event.KindFault} {
		s.Record(&event.Event{Kind: kind, Group: "world", Operation: "Agree", Name: "n", Text: "late"})
	}

	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}

	b, err := os.ReadFile(filepath.Join(folder, trace.FileName(1)))
	if err != nil {
		tb.Fatal(err)
	}

	return b
}

// FuzzReadTrace is like FuzzRead for traces of symmem. 10 bytes of the input are the offset and the
// new value of a word.
func FuzzReadTrace(f *testing.F) {
	small := smallTrace(f)
	f.Add([]byte{})
	f.Add([]byte("\x80\x00\xff\xff\xff\xff\xff\xff\xff\xff")) // the number of records
	f.Add([]byte("\x00\x10\x01\x00\x00\x00\x02\x00\x02\x00")) // the head of the first record
	f.Add([]byte("\x28\x10\xff\xff\xff\xff\xff\xff\xff\x7f")) // the place of the first block
	f.Fuzz(func(t *testing.T, changes []byte) {
		file := bytes.Clone(small)
		for ; len(changes) >= 10; changes = changes[10:] {
			copy(file[binary.LittleEndian.Uint16(changes):], changes[2:10])
		}

		compareWithItself(t, file)
	})
}
