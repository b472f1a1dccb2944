package agreement

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/ledger"
	"symmem/internal/ranklist"
)

// Kind says what the ranks differ in.
type Kind uint8

// The kinds of divergence, in the order in which they are looked for.
const (
	// KindTag: the ranks are in different operations.
	KindTag Kind = iota + 1
	// KindLedgers: the ranks compare different pools.
	KindLedgers
	// KindPlacement: the histories of a pool differ.
	KindPlacement
	// KindPending: the histories agree, but not what is about to be registered.
	KindPending
	// KindCollective: the histories agree, but not the collective that is being called.
	KindCollective
)

var kindNames = [...]string{"", "operation", "pools", "placement", "pending", "collective"}

// String returns the word for k.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Variant is what some ranks have alike.
type Variant struct {
	// Ranks are those that have it.
	Ranks []int
	// What says it in words; for an event it is [ledger.Event.String].
	What string
	// Site is where it came from, as file:line, or "".
	Site string
	// Event is the event itself, if HasEvent.
	Event    ledger.Event
	HasEvent bool
}

// DivergenceError says that ranks which should be alike are not, and where. Its text is the same on
// every rank of the agreement.
type DivergenceError struct {
	// Group names the group whose ranks differ.
	Group string
	// Kind says what they differ in.
	Kind Kind
	// Ledger is the id of the pool, for KindPlacement and KindPending.
	Ledger uint64
	// Position is that of the first differing event, for KindPlacement. If Last is greater, that
	// part of the history is no longer kept and the event stands from Position to Last.
	Position, Last uint64
	// Variants has one entry for each different observation, ordered by lowest rank; at most 16.
	Variants []Variant
	// Others are ranks whose observations exceed that number.
	Others []int
	// Deviant are the ranks that differ from more than half of those that took part. It is empty
	// if there is no such majority: no rank is right because of its number. Ranks that report no
	// call, where others report different ones, are not counted and do not deviate.
	Deviant []int
	// Why is a hint at the kind of difference, for KindPlacement.
	Why Why
	// Absent are the ranks that did not take part in every round.
	Absent []int
	// Names are the words of the report. Ranks in the other fields are those of the group.
	Names Names
}

// Error says everything in one paragraph.
func (d *DivergenceError) Error() string {
	var b strings.Builder
	b.WriteString(d.heading())
	for i, v := range d.Variants {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		fmt.Fprintf(&b, "%s %s %q", d.Names.ranks(v.Ranks), verb(v.Ranks, "has", "have"), v.What)
		if v.Site != "" {
			fmt.Fprintf(&b, " at %s", v.Site)
		}
	}
	if len(d.Others) > 0 {
		fmt.Fprintf(&b, "; %s %s something else again",
			d.Names.ranks(d.Others), verb(d.Others, "has", "have"))
	}
	b.WriteString(d.closing())
	return b.String()
}

func (d *DivergenceError) heading() string {
	switch d.Kind {
	case KindTag:
		return fmt.Sprintf("group %s: ranks are in different operations", d.Group)
	case KindLedgers:
		return fmt.Sprintf("group %s: ranks have different pools", d.Group)
	case KindPending:
		return fmt.Sprintf("group %s: ranks are about to register different segments of %s",
			d.Group, d.Pool())
	case KindCollective:
		return fmt.Sprintf("group %s: ranks call different collectives", d.Group)
	case KindPlacement:
	}
	if d.Last > d.Position {
		return fmt.Sprintf("group %s: ranks diverged in %s between events %d and %d, "+
			"which are no longer kept", d.Group, d.Pool(), d.Position, d.Last)
	}
	return fmt.Sprintf("group %s: ranks diverged in %s at event %d",
		d.Group, d.Pool(), d.Position)
}

// Pool names the pool, for KindPlacement and KindPending.
func (d *DivergenceError) Pool() string {
	if d.Kind != KindPlacement && d.Kind != KindPending {
		return ""
	}
	return d.Names.pool(d.Ledger)
}

// closing says who deviates and how, as far as that can be told.
func (d *DivergenceError) closing() string {
	out := ""
	if d.Why == WhyHeld {
		out = "; " + d.Why.sentence(d.Names, nil, nil)
	} else if usual, deviant := d.sides(); usual >= 0 && deviant >= 0 && d.Why != WhyUnknown {
		out = "; " + d.Why.sentence(d.Names, d.alike(deviant), d.alike(usual))
	} else if len(d.Deviant) > 0 {
		out = fmt.Sprintf("; %s %s from the majority",
			d.Names.short(d.Deviant), verb(d.Deviant, "deviates", "deviate"))
	}
	if d.Why != WhyHeld && d.has(ledger.KindFree) {
		out += "; if garbage collection makes that free, it comes at another time on each rank: " +
			"free the buffer by a call, at the same place of the program on all ranks"
	}
	if d.has(ledger.KindSegment) {
		out += "; segments differ where ranks request different sizes, or where a device has less " +
			"memory: then bound the pool by a capacity that every device has"
	}
	if len(d.Absent) > 0 {
		out += fmt.Sprintf("; %s did not take part", d.Names.ranks(d.Absent))
	}
	return out
}

// has reports whether some ranks have an event of a kind where others have something else.
func (d *DivergenceError) has(kind ledger.Kind) bool {
	return d.Kind == KindPlacement && slices.ContainsFunc(d.Variants, func(v Variant) bool {
		return v.HasEvent && v.Event.Kind == kind
	})
}

// alike returns the ranks that have what variant i has, whatever their call sites.
func (d *DivergenceError) alike(i int) []int {
	var out []int
	for _, v := range d.Variants {
		if v.What == d.Variants[i].What {
			out = append(out, v.Ranks...)
		}
	}
	slices.Sort(out)
	return out
}

// sides returns the variant of the most ranks and the first one unlike it, or -1. Equally many
// ranks are no majority; then the lower rank comes first, which only orders the words.
func (d *DivergenceError) sides() (usual, deviant int) {
	usual, deviant = -1, -1
	most := 0
	for i, v := range d.Variants {
		if n := len(d.alike(i)); n > most && !d.abstains(v) {
			usual, most = i, n
		}
	}
	for i, v := range d.Variants {
		if v.What != d.Variants[usual].What && !d.abstains(v) {
			return usual, i
		}
	}
	return usual, deviant
}

// abstains reports whether ranks report no call where others report different ones: a rank that was
// stopped by the fault of another one knows no call in which it differs.
func (d *DivergenceError) abstains(v Variant) bool {
	return d.Kind == KindCollective && v.What == noCall && len(d.Variants) > 2
}

// conclude fills in who deviates among the given number of ranks.
func (d *DivergenceError) conclude(ranks int) {
	usual, _ := d.sides()
	for _, v := range d.Variants {
		if d.abstains(v) {
			ranks -= len(v.Ranks)
		}
	}
	if usual < 0 || 2*len(d.alike(usual)) <= ranks {
		return
	}
	for _, v := range d.Variants {
		if v.What != d.Variants[usual].What && !d.abstains(v) {
			d.Deviant = append(d.Deviant, v.Ranks...)
		}
	}
	d.Deviant = append(d.Deviant, d.Others...)
	slices.Sort(d.Deviant)
}

func (m *Machine) newDivergence(kind Kind, id uint64) *DivergenceError {
	return &DivergenceError{
		Group: m.config.Group, Kind: kind, Ledger: id, Absent: m.absent, Names: m.config.Names,
	}
}

// differ ends the agreement over contributions that the vote already showed to differ.
func (m *Machine) differ(
	kind Kind, id uint64, v variants, text func([]byte) (string, error),
) ([]byte, *Outcome, error) {
	d := m.newDivergence(kind, id)
	ranks := len(v.others)
	for _, one := range v.list {
		what, err := text(one.value)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants,
			Variant{Ranks: one.ranks, What: what, Site: string(one.note)})
		ranks += len(one.ranks)
	}
	d.Others = v.others
	d.conclude(ranks)
	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

func tagText(value []byte) (string, error) {
	if len(value) < 1 || len(value) > 1+MaxTag || value[0] > byte(Prefix) {
		return "", protocolError("decoding a tag")
	}
	return string(value[1:]), nil
}

func (m *Machine) idsText(value []byte) (string, error) {
	if len(value) == 0 {
		return "no pool", nil
	}
	pools := make([]string, 0, len(value)/8)
	for _, id := range words(value) {
		pools = append(pools, m.config.Names.pool(id))
	}
	return strings.Join(pools, ", "), nil
}

func pendingText(value []byte) (string, error) {
	count := binary.LittleEndian.Uint64(value)
	return fmt.Sprintf("%s pending, digest %016x", ranklist.Plural(count, "segment"),
		binary.LittleEndian.Uint64(value[8:])), nil
}
