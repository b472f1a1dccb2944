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
	keyValues    map[string]plain.Value       // the key of a dict as a Value, by the key
	textIndexes  map[string]int32             // index in rank.Texts, by text
	groups       map[string]*history.Sequence // by ID
	messageCount int                          // number of sends and receives
	lastStates   map[string]string            // state of the last call, by ID of the group
	entryCount   int64                        // number of calls of AddEntry
	// firstRecordID is the record_id of the first entry. The recorder counts entries from 0 and
	// overwrites old ones, so this is also the number of entries that are missing.
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

// AddEntry adds an entry of the dump, if it is a collective, to the rank's history. If the entry is
// a send or a receive, AddEntry only counts it.
func (r *Reader) AddEntry(d *plain.Document, entry plain.Value) error {
	if !d.IsDict(entry) {
		return fmt.Errorf("%w: an entry is not a dict", plain.ErrFormat)
	}

	number := r.entryCount
	r.entryCount++
	if number == 0 {
		r.firstRecordID, _ = r.field(d, entry, "record_id").Int() // 0 if missing
	}

	if r.field(d, entry, "is_p2p").Bool() {
		r.messageCount++
		return nil
	}

	group := r.findOrAddGroup(d, entry)
	callNumber, _ := r.field(d, entry, "collective_seq_id").Int()
	text := r.describe(d, entry)
	createdNS, _ := r.field(d, entry, "time_created_ns").RoundedInt()
	createdMicro := createdNS / 1000
	group.Events = append(group.Events, history.Event{
		Number: number, UnixMicro: createdMicro, Segment: -1, Action: history.Call,
		Block: history.FindOrAddText(r.textIndexes, &r.rank.Texts, text),
		Size:  callNumber, // not a size: used to find the same call on other ranks
		Stack: r.stacks.Add(d, r.field(d, entry, "frames")),
	})
	state, _ := d.StringOf(r.field(d, entry, "state"))
	r.lastStates[group.ID] = state
	if isPending(state) && len(r.rank.PendingCalls) < maxPendingCalls {
		r.rank.PendingCalls = append(r.rank.PendingCalls, history.PendingCall{
			Group: group.ID, Text: text, State: state, UnixMicro: createdMicro,
		})
	}

	return nil
}

const maxPendingCalls = 1000 // limit of len(Rank.PendingCalls)

// isPending reports whether a call in a state had not completed when the dump was written. An
// unknown state ("") does not count as pending.
func isPending(state string) bool { return state != "" && state != "completed" }

// field returns the value of a key in a dict, or None if the dict lacks the key.
func (r *Reader) field(d *plain.Document, dict plain.Value, key string) plain.Value {
	keyValue, ok := r.keyValues[key]
	if !ok {
		keyValue = d.StringValue(key)
		r.keyValues[key] = keyValue
	}

	return d.Get(dict, keyValue)
}

// findOrAddGroup returns the sequence of the group of an entry. It adds the sequence if the group
// is new.
func (r *Reader) findOrAddGroup(d *plain.Document, entry plain.Value) *history.Sequence {
	var words []string // the name and the description of the group
	for _, item := range d.Items(r.field(d, entry, "process_group")) {
		if text, ok := d.StringOf(item); ok && text != "" {
			words = append(words, text)
		}
	}

	if len(words) == 0 {
		id, _ := r.field(d, entry, "pg_id").Int()
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

// groupID returns the ID of a group. words are its name and its description, such as "0" and
// "default_pg". One of them may be missing.
func groupID(words []string) string { return history.MakePrintable(strings.Join(words, " ")) }

// maxRank limits the numbers of ranks, so that a damaged file cannot exhaust memory.
const maxRank = 1<<20 - 1

// addMembers adds the ranks of a group to Rank.Members. config is the group's element of
// pg_config, which states the ranks in a form such as "[0, 1]". If a rank is invalid, addMembers
// ignores the group.
func (r *Reader) addMembers(d *plain.Document, config plain.Value) {
	var words []string // as in findOrAddGroup
	for _, key := range []string{"name", "desc"} {
		if word, ok := d.StringOf(r.field(d, config, key)); ok && word != "" {
			words = append(words, word)
		}
	}

	text, _ := d.StringOf(r.field(d, config, "ranks"))
	var ranks []int
	for digits := range strings.SplitSeq(strings.Trim(text, "[] "), ",") {
		rank, err := strconv.Atoi(strings.TrimSpace(digits))
		if err != nil || rank < 0 || rank > maxRank {
			return
		}

		ranks = append(ranks, rank)
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
func (r *Reader) describe(d *plain.Document, entry plain.Value) string {
	name, _ := d.StringOf(r.field(d, entry, "profiling_name")) // such as "nccl:all_reduce"
	_, operation, hasPrefix := strings.Cut(name, ":")
	if !hasPrefix {
		operation = name
	}

	keys := []string{"input_dtypes", "output_dtypes"}
	if !canSizesDiffer(operation) {
		keys = append(keys, "input_sizes", "output_sizes")
	}

	var text strings.Builder
	text.WriteString(operation)
	for _, key := range keys {
		value := r.field(d, entry, key)
		if value.IsNone() {
			continue
		}

		text.WriteString(" " + strings.ReplaceAll(key, "_", " ") + " ")
		const depth = 0 // the value is not in a list
		appendValue(&text, d, value, depth)
	}

	return text.String()
}

// canSizesDiffer reports whether ranks may call an operation with different sizes. The suffix _v
// marks variants for uneven sizes.
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
	maxDepth     = 3 // more than the sizes of several tensors need, which are lists in a list
)

// appendValue appends a number, a string or a list of these to a description. It replaces other
// values with a question mark. depth is the number of lists that contain v.
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
// the top-level value of the dump. Call Finish after AddEntry has added all entries.
func (r *Reader) Finish(d *plain.Document, top plain.Value) {
	r.rank.Format = "Flight Recorder dump"
	r.rank.IsPartial = r.firstRecordID > 0
	if r.rank.IsPartial {
		r.rank.AddNote("the beginning is missing: %d earlier entries are not in the file",
			r.firstRecordID)
	}

	configs := d.Items(r.field(d, top, "pg_config")) // keys and values in turn
	const firstValue = 1
	for i := firstValue; i < len(configs); i += 2 {
		r.addMembers(d, configs[i])
	}

	if r.messageCount > 0 {
		r.rank.AddNote("%d sends and receives are left out: they need not agree between ranks",
			r.messageCount)
	}

	for _, g := range r.rank.Sequences {
		if state := r.lastStates[g.ID]; isPending(state) {
			r.rank.AddNote("the last call of group %s is %s, not completed", g.ID,
				history.MakePrintable(state))
		}
	}
}
