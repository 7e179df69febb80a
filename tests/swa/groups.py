"""The releases that the swa tests run on, and the selections of patches."""

from matrix import newest_of_each_group

GROUPS = newest_of_each_group("swa")
EXACT = "swa,-swa.window-metadata"
"""What a decode server plays here, without attention."""

if __name__ == "__main__":
    print(*GROUPS)
