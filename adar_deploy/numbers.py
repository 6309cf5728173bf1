"""Numbers in a list with commas between, as several options take them."""


def parse_numbers(name: str, text: str, least: int = 0) -> list[int]:
    """Whole numbers, or an error that says which option they were for."""
    from adar_runtime.errors import UsageError

    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"{name} are whole numbers with commas between, such as 8,50,300, not {text!r}"
        ) from error
    if min(numbers) < least:
        raise UsageError(f"{name} has {min(numbers)}: it has to be at least {least}")
    return numbers
