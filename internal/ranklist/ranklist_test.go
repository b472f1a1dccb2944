package ranklist

import "testing"

func TestRanksOn(t *testing.T) {
	world, two := []int{0, 1, 2, 3, 4, 5, 6, 7}, map[int]string{4: "b", 5: "b", 6: "c"}
	for _, c := range []struct {
		ranks, members []int
		machines       map[int]string
		want           string
	}{
		{[]int{3}, world, nil, "rank 3"},
		{[]int{3}, world, map[int]string{3: "a"}, "rank 3 on a"},
		{[]int{4, 5, 7}, world, map[int]string{4: "b", 5: "b", 7: "b"}, "ranks 4-5,7 on b"},
		{[]int{4, 5, 6}, world, two, "ranks 4-6 (4-5 on b, 6 on c)"},
		{[]int{4, 5}, world, map[int]string{4: "b"}, "ranks 4-5 (4 on b)"},
		{[]int{5}, []int{0, 5}, map[int]string{5: "b"}, "world rank 5 (rank 1 of the group) on b"},
		{nil, world, map[int]string{5: "b"}, "ranks "},
	} {
		if got := RanksOn(c.ranks, c.members, c.machines); got != c.want {
			t.Errorf("RanksOn(%v, %v, %v) = %q; want %q", c.ranks, c.members, c.machines, got, c.want)
		}
	}
}
