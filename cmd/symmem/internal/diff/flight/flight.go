// Package flight reads dumps of PyTorch's Flight Recorder, which list the collectives that a rank
// called in each of its groups. It ignores the version in a dump and looks at the keys that are
// present.
package flight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
	"symmem/cmd/symmem/internal/diff/snapshot"
)

// StreamedLists selects the lists whose elements plain.Decode passes to Reader.AddEntry.
var StreamedLists = []plain.StreamedList{{Key: "entries", Levels: 1}}

// Reader collects the entries of one dump.
type Reader struct {
	rank         *history.Rank
	stacks       *snapshot.Stacks
	keyValues    map[string]plain.Value       // Values of the keys of dicts
	textIndexes  map[string]int32             // index in rank.Texts, by text
	groups       map[string]*history.Sequence // by ID
	messageCount int                          // number of sends and receives
	lastStates   map[string]string            // state of the last call, by ID of the group
	entryCount   int64                        // number of calls of AddEntry
	// firstRecordID is the record_id of the first entry, which is the number of earlier entries that
	// newer ones have replaced.
	firstRecordID int64
}

// NewReader returns a Reader that adds calls to rank.
func NewReader(rank *history.Rank, stacks *snapshot.Stacks) *Reader {
	return &Reader{
		rank: rank, stacks: stacks, keyValues: map[string]plain.Value{}, textIndexes: map[string]int32{},
		groups: map[string]*history.Sequence{}, lastStates: map[string]string{},
	}
}

// HasEntries reports whether the dump contained any entries.
func (r *Reader) HasEntries() bool { return r.entryCount > 0 }

// AddEntry adds the entry v of the dump to the rank's history. It only counts sends and receives.
func (r *Reader) AddEntry(d *plain.Document, v plain.Value) error {
	if !d.IsDict(v) {
		return fmt.Errorf("%w: an entry is not a dict", plain.ErrFormat)
	}
	number := r.entryCount
	if number == 0 {
		r.firstRecordID, _ = d.Get(v, r.keyValue(d, "record_id")).Int()
	}
	r.entryCount++
	if d.Get(v, r.keyValue(d, "is_p2p")).Bool() {
		r.messageCount++
		return nil
	}
	group := r.group(d, v)
	callNumber, _ := d.Get(v, r.keyValue(d, "collective_seq_id")).Int()
	text := r.describe(d, v)
	textIndex, ok := r.textIndexes[text]
	if !ok {
		textIndex = int32(len(r.rank.Texts))
		r.textIndexes[text] = textIndex
		r.rank.Texts = append(r.rank.Texts, text)
	}
	createdNS, _ := d.Get(v, r.keyValue(d, "time_created_ns")).RoundedInt()
	created := createdNS / 1000 // in microseconds
	group.Events = append(group.Events, history.Event{
		Number: number, UnixMicro: created, Segment: -1, Block: textIndex, Action: history.Call,
		Size:  callNumber, // compared between ranks
		Stack: r.stacks.Add(d, d.Get(v, r.keyValue(d, "frames"))),
	})
	r.lastStates[group.ID], _ = d.StringOf(d.Get(v, r.keyValue(d, "state")))
	r.addPending(group, text, created)
	return nil
}

const maxPendingCalls = 1000 // limit of len(Rank.PendingCalls)

// addPending adds a call to the pending calls unless it has completed. The call must be the last
// of its group so far. created is its time in microseconds since 1970.
func (r *Reader) addPending(group *history.Sequence, text string, created int64) {
	state := r.lastStates[group.ID]
	if state == "" || state == "completed" || len(r.rank.PendingCalls) >= maxPendingCalls {
		return
	}
	r.rank.PendingCalls = append(r.rank.PendingCalls, history.PendingCall{
		Group: group.ID, Text: text, State: state, UnixMicro: created,
	})
}

func (r *Reader) keyValue(d *plain.Document, name string) plain.Value {
	v, ok := r.keyValues[name]
	if !ok {
		v = d.StringValue(name)
		r.keyValues[name] = v
	}
	return v
}

// group returns the sequence of the group of an entry, which it adds if it is new.
func (r *Reader) group(d *plain.Document, v plain.Value) *history.Sequence {
	var words []string // the name and the description of the group
	for _, item := range d.Items(d.Get(v, r.keyValue(d, "process_group"))) {
		if text, ok := d.StringOf(item); ok && text != "" {
			words = append(words, text)
		}
	}
	if len(words) == 0 {
		id, _ := d.Get(v, r.keyValue(d, "pg_id")).Int()
		words = []string{fmt.Sprint(id)}
	}
	id := groupID(words)
	g := r.groups[id]
	if g == nil {
		g = &history.Sequence{
			Class: history.Calls, ID: id, IsPartial: true, NoPlacesReason: "calls have no places",
		}
		r.groups[id] = g
		r.rank.Sequences = append(r.rank.Sequences, g)
	}
	return g
}

// groupID returns the ID of a group with a name and a description, one of which may be missing.
func groupID(words []string) string { return history.MakePrintable(strings.Join(words, " ")) }

// maxRank limits the numbers of ranks, so that a damaged file cannot exhaust memory.
const maxRank = 1<<20 - 1

// addMembers adds the ranks of a group to Rank.Members. config is the group's element of
// pg_config, which states the ranks in a form such as "[0, 1]". It ignores a group with an
// invalid rank.
func (r *Reader) addMembers(d *plain.Document, config plain.Value) {
	var words []string
	for _, key := range []string{"name", "desc"} {
		if word, ok := d.StringOf(d.Get(config, r.keyValue(d, key))); ok && word != "" {
			words = append(words, word)
		}
	}
	text, _ := d.StringOf(d.Get(config, r.keyValue(d, "ranks")))
	var ranks []int
	for number := range strings.SplitSeq(strings.Trim(text, "[] "), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 0 || n > maxRank {
			return
		}
		ranks = append(ranks, n)
	}
	if r.rank.Members == nil {
		r.rank.Members = map[string][]int{}
	}
	r.rank.Members[groupID(words)] = ranks
}

// unevenOperations lists prefixes of the names of operations whose sizes can differ between ranks.
var unevenOperations = []string{"gather", "scatter", "all_to_all"}

// describe returns the description of the call in an entry. It contains everything that must be
// the same on all ranks: the name of the operation, the data types and, unless they can differ,
// the sizes.
func (r *Reader) describe(d *plain.Document, v plain.Value) string {
	name, _ := d.StringOf(d.Get(v, r.keyValue(d, "profiling_name")))
	_, operation, hasPrefix := strings.Cut(name, ":")
	if !hasPrefix {
		operation = name
	}
	var b strings.Builder
	b.WriteString(operation)
	for _, key := range []string{"input_dtypes", "output_dtypes", "input_sizes", "output_sizes"} {
		value := d.Get(v, r.keyValue(d, key))
		isSizes := strings.HasSuffix(key, "sizes")
		if value.IsNone() || isSizes && canSizesDiffer(operation) {
			continue
		}
		b.WriteString(" " + strings.ReplaceAll(key, "_", " ") + " ")
		appendValue(&b, d, value, 0)
	}
	return b.String()
}

func canSizesDiffer(operation string) bool {
	if strings.HasSuffix(operation, "_v") {
		return true
	}
	return slices.ContainsFunc(unevenOperations, func(prefix string) bool {
		return strings.HasPrefix(operation, prefix)
	})
}

// maxTextBytes limits the length of a description, and maxDepth the nesting of its lists. Without
// limits, a small pickle that refers to the same list many times could produce a huge text.
const (
	maxTextBytes = 1 << 20
	maxDepth     = 3
)

// appendValue appends a number, a string or a list of these to a description. depth is the number
// of lists that contain v.
func appendValue(b *strings.Builder, d *plain.Document, v plain.Value, depth int) {
	if text, ok := d.StringOf(v); ok {
		b.WriteString(text)
		return
	}
	if n, ok := v.Int(); ok {
		fmt.Fprint(b, n)
		return
	}
	if !d.IsList(v) || depth > maxDepth {
		b.WriteByte('?')
		return
	}
	b.WriteByte('[')
	for i, item := range d.Items(v) {
		if b.Len() > maxTextBytes {
			b.WriteString(" ...")
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		appendValue(b, d, item, depth+1)
	}
	b.WriteByte(']')
}

// Finish sets the rank's format and the members of groups, and adds notes about the dump. top is
// the top-level value of the dump. Finish must be called after all entries have been added.
func (r *Reader) Finish(d *plain.Document, top plain.Value) {
	r.rank.Format = "Flight Recorder dump"
	r.rank.IsPartial = r.firstRecordID > 0
	if r.rank.IsPartial {
		r.rank.AddNote("the beginning is missing: %d earlier entries are not in the file",
			r.firstRecordID)
	}
	configs := d.Items(d.Get(top, d.StringValue("pg_config"))) // keys and values in turn
	for i := 1; i < len(configs); i += 2 {
		r.addMembers(d, configs[i])
	}
	if r.messageCount > 0 {
		r.rank.AddNote("%d sends and receives are left out: they need not agree between ranks",
			r.messageCount)
	}
	for _, g := range r.rank.Sequences {
		if state := r.lastStates[g.ID]; state != "" && state != "completed" {
			r.rank.AddNote("the last call of group %s is %s, not completed", g.ID,
				history.MakePrintable(state))
		}
	}
}
