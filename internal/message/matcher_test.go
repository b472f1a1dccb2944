package message

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// step is one event and the expected claims.
type step struct {
	event  string
	happen func(m *Matcher[string]) []Claim[string]
	want   string
}

func post(r string, tag, source int, want string) step {
	return step{
		fmt.Sprintf("receive %s with tag %d from %d", r, tag, source),
		func(m *Matcher[string]) []Claim[string] { return m.Post(r, tag, source, 0) }, want,
	}
}

func arrive(source, tag int, number uint64, want string) step {
	return step{
		fmt.Sprintf("message %d of %d with tag %d", number, source, tag),
		func(m *Matcher[string]) []Claim[string] {
			return m.Arrive(Arrival{Source: source, Tag: tag, Number: number})
		}, want,
	}
}

func text(claims []Claim[string]) string {
	var all string
	for _, c := range claims {
		all += fmt.Sprintf("%s=%d:%d ", c.Receive, c.Source, c.Number)
	}
	return all
}

func TestMessagesAreClaimedInTheOrderOfCalls(t *testing.T) {
	for _, row := range []struct {
		sentence  string
		steps     []step
		unclaimed string
	}{
		{"a receive from a source claims its next number before it arrives", []step{
			post("a", 0, 3, "a=3:1 "), post("b", 0, 3, "b=3:2 "), arrive(3, 0, 1, ""),
			arrive(3, 0, 2, ""), arrive(3, 0, 3, ""), post("c", 0, 3, "c=3:3 "),
		}, "[]"},
		{"tags and sources are numbered separately", []step{
			post("a", 0, 1, "a=1:1 "), post("b", 7, 1, "b=1:1 "), post("c", 0, 2, "c=2:1 "),
		}, "[]"},
		{"a receive from any source takes the first arrival", []step{
			arrive(2, 0, 1, ""), arrive(1, 0, 1, ""), post("a", 0, Any, "a=2:1 "),
			post("b", 0, Any, "b=1:1 "),
		}, "[]"},
		{"a receive from any source waits for a message", []step{
			post("a", 0, Any, ""), arrive(1, 5, 1, ""), arrive(1, 0, 1, "a=1:1 "),
		}, "[{1 5 1 0}]"},
		{"the numbers of a source are taken in order, however they arrive", []step{
			post("a", 0, Any, ""), arrive(1, 0, 2, ""), arrive(2, 0, 3, ""), arrive(1, 0, 1, "a=1:1 "),
			post("b", 0, Any, "b=1:2 "),
		}, "[{2 0 3 0}]"},
		{"later receives of the tag wait for one from any source", []step{
			post("a", 0, Any, ""), post("b", 0, 1, ""), post("c", 4, 1, "c=1:1 "),
			arrive(1, 0, 1, "a=1:1 b=1:2 "), arrive(1, 0, 2, ""),
		}, "[]"},
		{"one message lets all go on that waited for the first of them", []step{
			post("a", 0, Any, ""), post("b", 0, 2, ""), post("c", 0, Any, ""), arrive(1, 0, 2, ""),
			arrive(1, 0, 1, "a=1:1 b=2:1 c=1:2 "),
		}, "[]"},
		{"a message that arrives twice counts once", []step{
			arrive(1, 0, 1, ""), arrive(1, 0, 1, ""), post("a", 0, 1, "a=1:1 "), arrive(1, 0, 1, ""),
		}, "[]"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			var m Matcher[string]
			for _, s := range row.steps {
				if got := text(s.happen(&m)); got != s.want {
					t.Fatalf("%s: claims %q, want %q", s.event, got, s.want)
				}
			}
			if got := fmt.Sprint(m.Unclaimed()); got != row.unclaimed {
				t.Errorf("unclaimed are %s, want %s", got, row.unclaimed)
			}
		})
	}
}

// model is a simple matcher that keeps all events and scans them from the beginning after each.
type model struct {
	posts []Claim[int] // Number is the tag
	came  []Arrival
}

func (m *model) claims() (claims []Claim[int]) {
	taken := map[Key]uint64{}
	stuck := map[int]bool{}
	for _, p := range m.posts {
		tag := int(p.Number)
		if stuck[tag] {
			continue
		}
		source := p.Source
		if source == Any {
			i := slices.IndexFunc(m.came, func(a Arrival) bool {
				return a.Tag == tag && a.Number == taken[Key{a.Source, tag}]+1
			})
			if i < 0 {
				stuck[tag] = true
				continue
			}
			source = m.came[i].Source
		}
		taken[Key{source, tag}]++
		claims = append(claims, Claim[int]{p.Receive, source, taken[Key{source, tag}]})
	}
	return claims
}

// TestMatcherMatchesModel compares the claims with those of the model. Claims are final: an arrival
// never changes an earlier claim, so the model keeps the claims that it has seen.
func TestMatcherMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Matcher[int]
		var simple model
		final := map[int]Claim[int]{}
		sent := map[Key]uint64{}
		for receive := range rapid.IntRange(1, 60).Draw(t, "events") {
			tag := rapid.IntRange(0, 2).Draw(t, "tag")
			var claims []Claim[int]
			if rapid.Bool().Draw(t, "post") {
				source := rapid.IntRange(Any, 2).Draw(t, "source")
				simple.posts = append(simple.posts, Claim[int]{receive, source, uint64(tag)})
				claims = m.Post(receive, tag, source, 0)
			} else {
				source := rapid.IntRange(0, 2).Draw(t, "sender")
				sent[Key{source, tag}]++
				a := Arrival{Source: source, Tag: tag, Number: sent[Key{source, tag}]}
				simple.came = append(simple.came, a)
				claims = m.Arrive(a)
			}
			for _, c := range claims {
				if _, twice := final[c.Receive]; twice {
					t.Fatalf("receive %d claims twice", c.Receive)
				}
				final[c.Receive] = c
			}
			want := simple.claims()
			if len(want) != len(final) {
				t.Fatalf("the model has %v, the matcher %v", want, final)
			}
			for _, w := range want {
				if final[w.Receive] != w {
					t.Fatalf("the model has %v, the matcher %v", w, final[w.Receive])
				}
			}
		}
	})
}

func BenchmarkPostAndArrive(b *testing.B) {
	var m Matcher[int]
	for number := uint64(1); b.Loop(); number++ {
		m.Post(0, 0, 1, 0)
		m.Arrive(Arrival{Source: 1, Number: number})
	}
}

// TestAnySourceTakesMessagesOfItsSegment has rank 2 send after a collective that rank 1 has not
// reached.
func TestAnySourceTakesMessagesOfItsSegment(t *testing.T) {
	var m Matcher[string]
	if claims := m.Post("first", 0, Any, 1); len(claims) != 0 {
		t.Fatalf("claimed %v of nothing", claims)
	}
	later := Arrival{Source: 2, Number: 1, Segment: 2}
	if claims := m.Arrive(later); len(claims) != 0 {
		t.Fatalf("claimed %v of a later segment", claims)
	}
	claims := m.Arrive(Arrival{Source: 1, Number: 1, Segment: 1})
	if got := text(claims); got != "first=1:1 " {
		t.Fatalf("claimed %q", got)
	}
	if got := text(m.Post("second", 0, Any, 2)); got != "second=2:1 " {
		t.Fatalf("claimed %q", got)
	}
}
